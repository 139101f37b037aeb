//! Numbers by which peers and faults are told apart.

use crate::open_error::OpenError;
use crate::options::NicOptions;

pub(crate) fn seed(options: &NicOptions) -> Result<u64, OpenError> {
    if let Some(seed) = options.seed {
        // Two NICs of one run must not share sequence numbers.
        return Ok(seed ^ u64::from(u32::from(options.ip.ip)));
    }
    let mut bytes = [0_u8; 8];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(OpenError::Random)?;
    Ok(u64::from_ne_bytes(bytes))
}
