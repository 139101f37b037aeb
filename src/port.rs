//! The port of a [`Nic`](crate::Nic), opened by its options.
#![allow(clippy::disallowed_methods)] // A capture is stamped with the calendar; the NIC itself never asks for it.

use std::path::Path;

use ringbell_nic_core::port::impair::{Faults, Impair};
use ringbell_nic_core::port::udp::{UdpConfig, UdpPort};
use ringbell_nic_core::port::{MacAddr, Port};

use crate::builder::NicOptions;
use crate::nic::PortSpec;
use crate::OpenError;

/// Opens the options' port, with the recorder and the faults around it: the record is what the wire carried.
pub(crate) fn open(options: &NicOptions, mac: MacAddr) -> Result<Option<Box<dyn Port>>, OpenError> {
    let mut port: Box<dyn Port> = match &options.port {
        PortSpec::None => return Ok(None),
        PortSpec::Mem => {
            let (switch, port) = options.switch.as_ref().ok_or(OpenError::NoSwitch)?;
            Box::new(switch.port(*port)?)
        }
        PortSpec::Udp { bind, peers, mtu } => Box::new(UdpPort::open(UdpConfig {
            bind: *bind,
            peers: peers.clone(),
            vni: options.vni,
            secret: options.udp_secret,
            mac,
            mtu: mtu.map(usize::from),
        })?),
        PortSpec::Tap { name, mtu } => tap(name, *mtu, mac, options)?,
    };
    if let Some(path) = &options.pcap {
        port = capture(port, path)?;
    }
    if options.faults
        != (Faults {
            seed: options.faults.seed,
            ..Faults::default()
        })
    {
        port = Box::new(Impair::new(port, options.faults)?);
    }
    Ok(Some(port))
}

#[cfg(feature = "tap")]
fn tap(
    name: &str,
    mtu: Option<u16>,
    mac: MacAddr,
    options: &NicOptions,
) -> Result<Box<dyn Port>, OpenError> {
    use ringbell_nic_core::port::tap::{TapConfig, TapPort};
    Ok(Box::new(TapPort::open(&TapConfig {
        name: name.to_owned(),
        mac,
        host: options.tap_host.map(|c| (c.ip, c.prefix)),
        mtu,
    })?))
}

#[cfg(not(feature = "tap"))]
fn tap(_: &str, _: Option<u16>, _: MacAddr, _: &NicOptions) -> Result<Box<dyn Port>, OpenError> {
    Err(OpenError::NotBuilt {
        what: "a port on a TAP device",
        feature: "tap",
    })
}

#[cfg(feature = "pcap")]
fn capture(port: Box<dyn Port>, path: &Path) -> Result<Box<dyn Port>, OpenError> {
    use ringbell_nic_core::port::capture::Capture;
    let file = std::fs::File::create(path).map_err(|source| OpenError::CaptureFile {
        path: path.to_owned(),
        source,
    })?;
    let epoch = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    let writer = std::io::BufWriter::new(file);
    Ok(Box::new(Capture::new(port, writer, epoch)?))
}

#[cfg(not(feature = "pcap"))]
fn capture(_: Box<dyn Port>, _: &Path) -> Result<Box<dyn Port>, OpenError> {
    Err(OpenError::NotBuilt {
        what: "a capture",
        feature: "pcap",
    })
}
