//! The ports of a [`Nic`](crate::Nic), opened by its options.
#![allow(clippy::disallowed_methods)] // A capture is stamped with the calendar; the NIC itself never asks for it.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use ringbell_mesh::{page, MeshConfig, MeshPort};
use ringbell_nic_core::port::impair::{Faults, Impair};
use ringbell_nic_core::port::roce::{RoceConfig, RocePort};
use ringbell_nic_core::port::streams::StreamPort;
use ringbell_nic_core::port::udp::{UdpConfig, UdpPort};
use ringbell_nic_core::port::{MacAddr, Port};
use ringbell_routes::named::{named, tables_of};
use ringbell_routes::route::Routes;
use ringbell_routes::topology::NodeId;
use rustix::fs::{memfd_create, MemfdFlags};

use crate::open_error::OpenError;
use crate::options::{NicOptions, PortOptions};
use crate::routes;
use crate::seed::seed;
use crate::spec::{PortSpec, TransportSpec, ROCE_PORT};

/// Opens the options' ports; `mac` is the first one's address.
pub(crate) fn open(options: &NicOptions, mac: MacAddr) -> Result<Vec<Box<dyn Port>>, OpenError> {
    let first = PortOptions {
        spec: options.port.clone(),
        switch: options.switch.clone(),
    };
    if first.spec == PortSpec::None {
        return match options.more_ports.is_empty() {
            true => Ok(Vec::new()),
            false => Err(OpenError::NoFirstPort),
        };
    }
    let all = std::iter::once(&first).chain(&options.more_ports);
    all.enumerate()
        .map(|(n, port)| one(n, port, options, mac))
        .collect()
}

/// Opens port `mesh` over its wires. Faults act on each wire.
fn mesh(name: &str, options: &NicOptions, mac: MacAddr) -> Result<Box<dyn Port>, OpenError> {
    let topology = named(name)?;
    let rank = options.mesh.node as usize;
    // One that no node has is refused with the others' number.
    let node = topology.ends().nth(rank).unwrap_or(NodeId(u16::MAX));
    let tables = options.mesh.tables.as_deref();
    let tables = tables.map(|path| tables_of(path, &topology)).transpose()?;
    let mut config = MeshConfig::new(topology, node);
    config.routes = tables.map(Routes::given);
    config.grace = options.mesh.grace.unwrap_or(config.grace);
    config.poll = options.mesh.poll.unwrap_or(config.poll);
    // An end that starts again must not be taken for the one before.
    config.epoch = seed(options)? as u32;
    let wires = options.mesh.wires.iter().map(|(number, port)| {
        let carries = matches!(
            port.spec,
            PortSpec::Mem | PortSpec::Udp { .. } | PortSpec::Tap { .. }
        );
        if !carries {
            let port = port.spec.clone();
            return Err(OpenError::NoWire { port });
        }
        let n = usize::from(*number);
        let wire = with_faults(opened(n, port, options, mac)?, n, options)?;
        Ok((*number, wire))
    });
    let wires = wires.collect::<Result<Vec<_>, OpenError>>()?;
    let mut port = MeshPort::open(config, wires)?;
    // Without it other processes see less; the NIC works.
    if let Ok(file) = memfd_create(page::NAME, MemfdFlags::CLOEXEC) {
        port.show(page::writer(file.into()));
    }
    let control = options.mesh.control.get_or_init(|| port.control());
    if let (Some(file), true) = (&options.mesh.tables, options.mesh.is_followed) {
        let followed = routes::watch(file.clone(), control.clone());
        followed.map_err(|source| OpenError::Thread { source })?;
    }
    Ok(Box::new(port))
}

/// Opens port number `n`, with the recorder and the faults around it: the record is what the wire
/// carried.
fn one(
    n: usize,
    port: &PortOptions,
    options: &NicOptions,
    mac: MacAddr,
) -> Result<Box<dyn Port>, OpenError> {
    let is_mesh = matches!(port.spec, PortSpec::Mesh { .. });
    let mut port = opened(n, port, options, mac)?;
    // Kernel sockets of streams have refused both.
    if port.listener().is_some() {
        return Ok(port);
    }
    if let Some(path) = &options.pcap {
        port = capture(port, &numbered(path, n))?;
    }
    match is_mesh {
        true => Ok(port),
        false => with_faults(port, n, options),
    }
}

/// The port with its faults, where there are some.
fn with_faults(
    port: Box<dyn Port>,
    n: usize,
    options: &NicOptions,
) -> Result<Box<dyn Port>, OpenError> {
    Ok(match faults(n, options) {
        Some(faults) => Box::new(Impair::new(port, faults)?),
        None => port,
    })
}

/// Opens port number `n`.
fn opened(
    n: usize,
    port: &PortOptions,
    options: &NicOptions,
    mut mac: MacAddr,
) -> Result<Box<dyn Port>, OpenError> {
    // Ports of one NIC may be on one link.
    mac.0[1] = mac.0[1].wrapping_add(n as u8);
    Ok(match &port.spec {
        PortSpec::None => return Err(OpenError::NoFirstPort),
        PortSpec::Mem => {
            let (switch, port) = port.switch.as_ref().ok_or(OpenError::NoSwitch)?;
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
        PortSpec::Tap { name, mtu } => tap(n, name, *mtu, mac, options)?,
        PortSpec::Roce { bind, mtu, .. } => {
            let own = match options.host {
                Some(host) => host,
                None => SocketAddr::from((options.ip.ip, ROCE_PORT)),
            };
            let bind = bind.unwrap_or(own);
            if options.transport == TransportSpec::Iwarp {
                return streams(bind, options);
            }
            let mtu = mtu.map(usize::from);
            let config = RoceConfig { bind, mtu };
            // Faults and captures act on packets of ours alone.
            let has_streams = options.transport == TransportSpec::Auto
                && options.pcap.is_none()
                && faults(n, options).is_none();
            Box::new(match has_streams {
                true => RocePort::open_with_streams(&config)?,
                false => RocePort::open(&config)?,
            })
        }
        PortSpec::Mesh { topology } => mesh(topology, options, mac)?,
    })
}

/// A port of streams, at which the host's TCP takes connections.
fn streams(bind: SocketAddr, options: &NicOptions) -> Result<Box<dyn Port>, OpenError> {
    let what = match (&options.pcap, faults(0, options)) {
        (Some(_), _) => "a capture by the NIC",
        (None, Some(_)) => "a fault of the port",
        (None, None) => return Ok(Box::new(StreamPort::open(bind)?)),
    };
    Err(OpenError::KernelPackets { what })
}

/// The faults of port `n`; `None` when there are none.
fn faults(n: usize, options: &NicOptions) -> Option<Faults> {
    let seed = options.faults.seed;
    let none = Faults {
        seed,
        ..Faults::default()
    };
    (options.faults != none).then(|| Faults {
        seed: seed.wrapping_add(n as u64),
        ..options.faults
    })
}

/// The file of port `n`: as given for the first one.
fn numbered(path: &Path, n: usize) -> PathBuf {
    match n {
        0 => path.to_owned(),
        _ => {
            let mut name = path.as_os_str().to_owned();
            name.push(format!(".{n}"));
            name.into()
        }
    }
}

#[cfg(feature = "tap")]
fn tap(
    n: usize,
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
        // Faults are those of the wire, and a record has its frames.
        offloads: options.pcap.is_none() && faults(n, options).is_none(),
    })?))
}

#[cfg(not(feature = "tap"))]
fn tap(
    _: usize,
    _: &str,
    _: Option<u16>,
    _: MacAddr,
    _: &NicOptions,
) -> Result<Box<dyn Port>, OpenError> {
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
    // The calendar time of NIC time 0.
    let epoch = std::time::SystemTime::now()
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap_or_default();
    let file = std::io::BufWriter::new(file);
    Ok(Box::new(Capture::new(port, file, epoch)?))
}

#[cfg(not(feature = "pcap"))]
fn capture(_: Box<dyn Port>, _: &Path) -> Result<Box<dyn Port>, OpenError> {
    Err(OpenError::NotBuilt {
        what: "a capture",
        feature: "pcap",
    })
}
