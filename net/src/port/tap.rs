//! TAP: frames to and from the Linux kernel's own stack, through `/dev/net/tun`.
//!
//! The NIC and the kernel are two hosts on the device's link: their addresses belong to one
//! network.

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use tun_rs::{DeviceBuilder, Layer, SyncDevice};

use super::{
    is_frame, Arrived, Capabilities, Checksums, MacAddr, Port, PortCounters, MTU_MAX, MTU_MIN,
};
use crate::wire::ETHERNET_HEADER;
use crate::NicTime;

/// How a TAP device is opened.
#[derive(Debug, Clone)]
pub struct TapConfig {
    /// Name of the device: made when there is none.
    pub name: String,
    /// MAC address of the NIC on the link.
    pub mac: MacAddr,
    /// Address and prefix length that the kernel's end gets; `None` leaves it as it is.
    pub host: Option<(Ipv4Addr, u8)>,
    /// IP MTU that the kernel's end gets; `None` takes the device's.
    pub mtu: Option<u16>,
}

/// A TAP device cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TapError {
    /// Neither root nor owner of the device.
    #[error("no permission to open TAP device {name}; run as root, or let root make it for you once: ip tuntap add {name} mode tap user $USER && ip link set {name} up")]
    Permission {
        /// The device.
        name: String,
    },
    /// The kernel offers none.
    #[error("cannot open /dev/net/tun for {name}: the kernel has no TUN/TAP here; load module tun, or give the container the device")]
    NotAvailable {
        /// The device.
        name: String,
    },
    /// Another process has it open.
    #[error("TAP device {name} is in use by another program; close it or choose another name")]
    InUse {
        /// The device.
        name: String,
    },
    /// The device's MTU is out of our range.
    #[error("TAP device {name} has an MTU of {mtu}; set one of 576 to 9216: ip link set {name} mtu 1500")]
    Mtu {
        /// The device.
        name: String,
        /// Its MTU.
        mtu: u16,
    },
    /// Anything else.
    #[error("cannot open TAP device {name}: {source}")]
    Os {
        /// The device.
        name: String,
        /// As the kernel says.
        source: io::Error,
    },
}

/// A port on a TAP device.
pub struct TapPort {
    device: SyncDevice,
    fd: RawFd,
    name: String,
    capabilities: Capabilities,
    out: Box<[u8]>,
    /// A frame that the kernel had no room for: sent before any other.
    held: Option<usize>,
    inbox: Box<[u8]>,
    counters: PortCounters,
}

impl TapPort {
    /// Opens the device and takes it up when we may.
    ///
    /// # Errors
    /// [`TapError`] says what is missing and how to get it.
    pub fn open(config: &TapConfig) -> Result<TapPort, TapError> {
        let name = || config.name.clone();
        let explain = |source: io::Error| match source.raw_os_error() {
            Some(e) if e == rustix::io::Errno::PERM.raw_os_error() => {
                TapError::Permission { name: name() }
            }
            Some(e) if e == rustix::io::Errno::ACCESS.raw_os_error() => {
                TapError::Permission { name: name() }
            }
            Some(e) if e == rustix::io::Errno::BUSY.raw_os_error() => {
                TapError::InUse { name: name() }
            }
            Some(e)
                if e == rustix::io::Errno::NOENT.raw_os_error()
                    || e == rustix::io::Errno::NODEV.raw_os_error() =>
            {
                TapError::NotAvailable { name: name() }
            }
            _ => TapError::Os {
                name: name(),
                source,
            },
        };
        let mut builder = DeviceBuilder::new()
            .name(&config.name)
            .layer(Layer::L2)
            .inherit_enable_state();
        if let Some((ip, prefix)) = config.host {
            builder = builder.ipv4(ip, prefix, None);
        }
        if let Some(mtu) = config.mtu {
            builder = builder.mtu(mtu);
        }
        let device = builder.build_sync().map_err(explain)?;
        device.set_nonblocking(true).map_err(explain)?;
        match device.enabled(true) {
            // A device that root made for us is up already, or root takes it up.
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied => {}
            result => result.map_err(explain)?,
        }
        let mtu = device.mtu().map_err(explain)?;
        if !(MTU_MIN..=MTU_MAX).contains(&usize::from(mtu)) {
            return Err(TapError::Mtu { name: name(), mtu });
        }
        let room = ETHERNET_HEADER + usize::from(mtu);
        Ok(TapPort {
            fd: device.as_raw_fd(),
            device,
            name: name(),
            capabilities: Capabilities::of_frames(
                config.mac,
                usize::from(mtu),
                Checksums::Software,
            ),
            out: vec![0; room].into(),
            held: None,
            // Room for a tag that another host may have added.
            inbox: vec![0; room + 4].into(),
            counters: PortCounters::default(),
        })
    }

    fn send(&mut self, len: usize) {
        match self.device.send(&self.out[..len]) {
            Ok(_) => {
                self.held = None;
                self.counters.tx_frames += 1;
                self.counters.tx_bytes += len as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => self.held = Some(len),
            // Down (EIO) or no memory: lost, as on a cable that was pulled.
            Err(_) => {
                self.held = None;
                self.counters.tx_dropped += 1;
            }
        }
    }
}

impl Port for TapPort {
    fn describe(&self) -> String {
        format!("tap {}", self.name)
    }
    fn capabilities(&self) -> &Capabilities {
        &self.capabilities
    }
    fn receive(&mut self, _now: NicTime) -> Option<Arrived<'_>> {
        loop {
            let n = self.device.recv(&mut self.inbox).ok()?;
            if n < ETHERNET_HEADER {
                self.counters.rx_malformed += 1;
                continue;
            }
            self.counters.rx_frames += 1;
            self.counters.rx_bytes += n as u64;
            return Some(Arrived::Frame(&self.inbox[..n]));
        }
    }
    fn tx_frame(&mut self, _now: NicTime, _dst: MacAddr) -> Option<&mut [u8]> {
        if let Some(len) = self.held {
            self.send(len);
        }
        match self.held {
            Some(_) => None,
            None => Some(&mut self.out),
        }
    }
    fn tx_commit(&mut self, _now: NicTime, len: usize) {
        match is_frame(len, self.capabilities.mtu) {
            true => self.send(len),
            false => self.counters.tx_dropped += 1,
        }
    }
    fn flush(&mut self, _now: NicTime) {
        if let Some(len) = self.held {
            self.send(len);
        }
    }
    fn next_timer(&self) -> Option<NicTime> {
        // A held frame is tried again at the next step.
        self.held.map(|_| NicTime(0))
    }
    fn poll_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        fds.push(borrow(&self.device, self.fd));
    }
    fn counters(&self) -> PortCounters {
        self.counters
    }
}

#[allow(unsafe_code)] // tun-rs offers only the raw number.
fn borrow(_owner: &SyncDevice, fd: RawFd) -> BorrowedFd<'_> {
    // SAFETY: the device owns this descriptor and lives at least as long as the borrow.
    unsafe { BorrowedFd::borrow_raw(fd) }
}
