//! [`GpuResult`]: the result that a kernel reports of its calls.

use ringbell_nic_abi::Status;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::SessionError;

/// `gpu_result` of the device header, as a kernel writes it to memory: `nic.alloc::<GpuResult>(1)`.
///
/// Zeroed memory reads as success. Write [`GpuResult::UNWRITTEN`] before the launch, so that a
/// kernel that returns early is noticed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct GpuResult {
    status: u32,
    /// Of `gpu_socket` and `gpu_accept`: the new session.
    pub session: u32,
    /// Bytes moved, also when the call failed half-way.
    pub bytes: u64,
    /// The status's detail: for example the address that faulted.
    pub detail: u64,
}

impl GpuResult {
    /// No status of the contract: what [`GpuResult::check`] reports as [`SessionError::NoResult`].
    pub const UNWRITTEN: GpuResult = GpuResult {
        status: u32::MAX,
        session: 0,
        bytes: 0,
        detail: 0,
    };

    /// How the call ended; `None` when the word is no status of the contract.
    pub fn status(&self) -> Option<Status> {
        Status::from_code(self.status.try_into().ok()?)
    }

    /// The bytes of a call that succeeded; `operation` is for the error's text.
    ///
    /// # Errors
    /// [`SessionError::Failed`], or [`SessionError::NoResult`] where there is no status.
    pub fn check(&self, operation: &'static str) -> Result<u64, SessionError> {
        match self.status() {
            Some(Status::Ok) => Ok(self.bytes),
            Some(status) => Err(SessionError::Failed {
                operation,
                peer: None,
                status,
                bytes: self.bytes,
                detail: self.detail,
                why: None,
            }),
            None => Err(SessionError::NoResult { operation }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_result_lies_in_memory_as_the_header_has_it() {
        let words = [7_u64 << 32 | 15, 100, 0x2000];
        let result = GpuResult::read_from_bytes(words.as_bytes()).expect("24 bytes");
        assert_eq!(result.session, 7);
        let failed = result.check("send").expect_err("reset");
        assert_eq!(failed.status(), Some(Status::ConnectionReset));
        assert_eq!(failed.detail(), Some(0x2000));
        assert!(
            failed.to_string().contains("100 bytes were moved"),
            "{failed}"
        );
        let ok = GpuResult {
            status: 0,
            ..result
        };
        assert_eq!(ok.check("send").expect("success"), 100);
        for status in [u32::MAX, 0xff00] {
            let nothing = GpuResult {
                status,
                ..GpuResult::UNWRITTEN
            };
            let error = nothing.check("send").expect_err("no status");
            assert!(matches!(error, SessionError::NoResult { .. }), "{error}");
        }
    }
}
