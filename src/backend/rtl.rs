//! The NIC `rtl`: the software NIC whose data path is the hardware of hw/rtl, simulated cycle by
//! cycle.
//!
//! Descriptors, completion lines and the payloads of sends and receives pass `nic_top`; the rest is
//! software (hw/README.md).

#[cfg(feature = "rtl")]
use std::net::Ipv4Addr;
use std::sync::Arc;

use ringbell_cuda_kernels::Gpu;

use super::control_path::Backend;
#[cfg(feature = "rtl")]
use super::soft;
use crate::open_error::OpenError;
use crate::options::NicOptions;

/// Cycles from a read's request to its first line: 0.8 µs at 250 MHz, a GPU's memory over PCIe.
#[cfg(feature = "rtl")]
const READ_CYCLES: u64 = 200;

/// Opens a NIC with simulated hardware over the GPU's memory.
#[cfg(feature = "rtl")]
pub(crate) fn open(options: &NicOptions, gpu: &Gpu) -> Result<Arc<dyn Backend>, OpenError> {
    use ringbell_hw_sim::card::Card;

    let trace = options.vcd.as_ref();
    let trace = trace
        .map(|file| trace_file(file, options.ip.ip))
        .transpose()?;
    soft::open_with(
        options,
        gpu,
        Some(Box::new(move |bus| {
            let mut card = Card::new(bus, READ_CYCLES);
            if let Some(file) = &trace {
                card.trace(file);
            }
            Box::new(card)
        })),
    )
}

/// The file of a NIC's trace, `t-10.77.0.1.vcd` for `t.vcd`: each NIC has its own. It can be
/// written.
#[cfg(feature = "rtl")]
fn trace_file(file: &std::path::Path, ip: Ipv4Addr) -> Result<std::ffi::CString, OpenError> {
    use std::os::unix::ffi::OsStringExt as _;

    let mut name = file.file_stem().unwrap_or_default().to_os_string();
    name.push(format!("-{ip}."));
    name.push(file.extension().unwrap_or("vcd".as_ref()));
    let path = file.with_file_name(name);
    let failed = |source| OpenError::TraceFile {
        path: path.clone(),
        source,
    };
    std::fs::File::create(&path).map_err(failed)?;
    std::ffi::CString::new(path.clone().into_os_string().into_vec()).map_err(|e| failed(e.into()))
}

/// There is none in this build.
#[cfg(not(feature = "rtl"))]
pub(crate) fn open(_: &NicOptions, _: &Gpu) -> Result<Arc<dyn Backend>, OpenError> {
    Err(OpenError::NotBuilt {
        what: "nic rtl",
        feature: "rtl",
    })
}
