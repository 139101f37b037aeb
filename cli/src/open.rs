//! Opening of a NIC and a GPU for a command, and the exit when there is none.

use anyhow::{Error, Result};
use ringbell::gpu::{ChosenGpu, EmulatedGpuConfig, GpuChoice, GpuOpenError};
use ringbell::nic::{PortSpec, Route};
use ringbell::parts::nic_core::port::mem::{MemSwitch, SwitchError};
use ringbell::parts::nic_core::port::Checksums;
use ringbell::parts::nic_core::transport::Icrc;
use ringbell::{Nic, NicBuilder, OpenError};

use super::{Exit, Problem};

/// Gives a NIC its ports, numbered in their order, and its routes.
pub(crate) fn with_ports(nic: NicBuilder, ports: &[PortSpec], routes: &[Route]) -> NicBuilder {
    let mut ports = ports.iter().cloned();
    let nic = nic.when(ports.next(), NicBuilder::port);
    let nic = ports.fold(nic, NicBuilder::add_port);
    routes.iter().copied().fold(nic, NicBuilder::route)
}

const ICRC: [(&str, Icrc); 3] = [
    ("auto", Icrc::Auto),
    ("on", Icrc::Always),
    ("off", Icrc::Never),
];

/// The value of `--icrc`.
pub(crate) fn icrc(text: &str) -> Result<Icrc, String> {
    let found = ICRC.iter().find(|(name, _)| *name == text);
    found
        .map(|(_, value)| *value)
        .ok_or_else(|| format!("`{text}` is not auto, on or off"))
}

/// The text of a value.
pub(crate) fn icrc_name(value: Icrc) -> &'static str {
    let found = ICRC.iter().find(|(_, v)| *v == value);
    found.map_or("auto", |(name, _)| name)
}

/// Whether NICs are simulated hardware by default: so many times slower that benchmarks have fewer
/// iterations.
pub(crate) fn is_simulated() -> bool {
    let kind = std::env::var(ringbell::nic::NIC_VARIABLE);
    kind.is_ok_and(|kind| kind == ringbell::nic::NicKind::Rtl.name())
}

const ADVICE: &str = "read the cause above; `ringbell doctor` tells what this machine offers";

/// Opens a NIC.
///
/// # Errors
/// A [`Problem`]: [`Exit::Usage`] when no machine could do it, else [`Exit::Environment`].
pub(crate) fn nic(builder: NicBuilder) -> Result<Nic> {
    let what = format!("cannot open a NIC at {builder}");
    builder.open().map_err(|e| {
        let (exit, advice) = match &e {
            OpenError::NoPort { .. } => {
                (Exit::Usage, "give --port a port, or leave --transport away")
            }
            OpenError::NoFrames => (
                Exit::Usage,
                "give --transport rdma or udp, or leave it away",
            ),
            OpenError::Tcp(_) | OpenError::Faults(_) | OpenError::Network(_) => {
                (Exit::Usage, "see --help for the range")
            }
            OpenError::NotBuilt { feature: "rtl", .. } => (
                Exit::Environment,
                "build the command with it: `cargo xtask hw simulate --block nic_top` installs Verilator, then `cargo build --features rtl`",
            ),
            OpenError::NoFirstPort => {
                (Exit::Usage, "give --port none alone, or another first port")
            }
            OpenError::Gpu(GpuOpenError::Variable(_)) => {
                (Exit::Usage, "set it to auto, cuda, cuda:N or emulated")
            }
            _ => (Exit::Environment, ADVICE),
        };
        Error::new(e).context(Problem::new(exit, what, advice))
    })
}

/// Opens the selected GPU.
///
/// # Errors
/// A [`Problem`] that ends with [`Exit::Environment`].
pub(crate) fn gpu(config: &EmulatedGpuConfig) -> Result<ChosenGpu> {
    GpuChoice::Auto.open(config).map_err(|e| {
        Error::new(e).context(Problem::new(
            Exit::Environment,
            "cannot open the GPU",
            ADVICE,
        ))
    })
}

/// MTU of the switch of port `mem`, where the user gives none.
const SWITCH_MTU: u16 = 9000;

/// Makes the switch of port `mem`.
///
/// # Errors
/// A [`Problem`]: [`Exit::Usage`] for numbers that no switch has, else [`Exit::Environment`].
pub(crate) fn switch(ports: usize, mtu: Option<u16>, checksums: Checksums) -> Result<MemSwitch> {
    MemSwitch::shared(ports, mtu.unwrap_or(SWITCH_MTU).into(), checksums).map_err(|e| {
        let (exit, advice) = match &e {
            SwitchError::Ports { .. } => (
                Exit::Usage,
                "give fewer ranks, or --port udp, which connects any number",
            ),
            SwitchError::Mtu { .. } => (Exit::Usage, "give --mtu another number"),
            _ => (Exit::Environment, ADVICE),
        };
        let what = "cannot make the in-memory switch";
        Error::new(e).context(Problem::new(exit, what, advice))
    })
}
