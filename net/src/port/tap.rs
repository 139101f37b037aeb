//! TAP: frames to and from the Linux kernel's own stack, through `/dev/net/tun`.
//!
//! The NIC and the kernel are two hosts on the device's link: their addresses belong to one
//! network.
//!
//! Where the kernel can, a long frame stands for many: those of the kernel's TCP are received as
//! one, and segments of a connection that the NIC sends in one step are joined (`join.rs`).

mod join;
mod offload;
#[cfg(test)]
mod tests;

use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use tun_rs::{DeviceBuilder, Layer, SyncDevice, VirtioNetHdr, VIRTIO_NET_HDR_LEN};

use self::join::{Joined, PACKET_MAX};
use self::offload::{Datagrams, Held};

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
    /// Whether long frames may stand for many, where the kernel can. `false` where something
    /// between the port and the NIC looks at each frame of the wire.
    pub offloads: bool,
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
    /// Bytes before each frame: the header of offloads, or none.
    before: usize,
    /// Header and frame that leave next, and behind them the one that the NIC makes.
    out: Box<[u8]>,
    /// The frame in `out`: one that the next may lengthen, or that the kernel had no room for.
    next: Option<Joined>,
    /// Bytes of a frame behind it, which does not lengthen it.
    behind: Option<usize>,
    /// The kernel had no room: nothing is made before it has gone.
    held: bool,
    inbox: Box<[u8]>,
    /// Datagrams that are left in `inbox`, and the frame of one.
    datagrams: Option<Datagrams>,
    datagram: Box<[u8]>,
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
        let build = |offload: bool| {
            let mut builder = DeviceBuilder::new()
                .name(&config.name)
                .layer(Layer::L2)
                .offload(offload)
                .inherit_enable_state();
            if let Some((ip, prefix)) = config.host {
                builder = builder.ipv4(ip, prefix, None);
            }
            if let Some(mtu) = config.mtu {
                builder = builder.mtu(mtu);
            }
            builder.build_sync()
        };
        let device = match config.offloads {
            // A kernel without them refuses, for one reason or another.
            true => build(true).or_else(|_| build(false)),
            false => build(false),
        };
        let device = device.map_err(explain)?;
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
        let offloads = device.tcp_gso();
        let (before, longest) = match offloads {
            true => (VIRTIO_NET_HDR_LEN, ETHERNET_HEADER + PACKET_MAX),
            false => (0, room),
        };
        Ok(TapPort {
            fd: device.as_raw_fd(),
            device,
            name: name(),
            capabilities: Capabilities::of_frames(
                config.mac,
                usize::from(mtu),
                Checksums::Software,
            ),
            before,
            out: vec![0; before + longest + room].into(),
            next: None,
            behind: None,
            held: false,
            // Room for a tag that another host may have added.
            inbox: vec![0; before + longest + 4].into(),
            datagrams: None,
            datagram: vec![0; if offloads { longest } else { 0 }].into(),
            counters: PortCounters::default(),
        })
    }

    /// Where the NIC makes a frame.
    fn made_at(&self) -> usize {
        self.before + self.next.map_or(0, |next| next.len)
    }

    /// Sends the frame in `out`, and one behind it that nothing may follow.
    fn send(&mut self) {
        while let Some(next) = self.next {
            let end = self.before + next.len;
            if self.before > 0 && !self.held {
                let header = next.finish(&mut self.out[self.before..end]);
                // There is room for it.
                let _ = header.encode(&mut self.out[..self.before]);
            }
            match self.device.send(&self.out[..end]) {
                Ok(_) => {
                    self.counters.tx_frames += next.segments;
                    self.counters.tx_bytes += next.bytes();
                }
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.held = true;
                    return;
                }
                // Down (EIO) or no memory: lost, as on a cable that was pulled.
                Err(_) => self.counters.tx_dropped += next.segments,
            }
            self.held = false;
            self.next = None;
            if let Some(len) = self.behind.take() {
                self.out.copy_within(end..end + len, self.before);
                if self.keep(len) {
                    return;
                }
            }
        }
    }

    /// Takes the frame that begins in `out` as the next. `true`: others may follow it.
    fn keep(&mut self, len: usize) -> bool {
        let frame = &self.out[self.before..self.before + len];
        let first = match self.before {
            0 => None,
            _ => Joined::first(frame),
        };
        self.next = Some(first.unwrap_or(Joined::alone(len)));
        first.is_some()
    }

    /// The next of the datagrams that are left: its length.
    fn next_datagram(&mut self) -> Option<usize> {
        let left = self.datagrams.as_mut()?;
        let len = left.next(&self.inbox[self.before..], &mut self.datagram);
        if len.is_none() {
            self.datagrams = None;
        }
        len
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
            if let Some(len) = self.next_datagram() {
                self.counters.rx_frames += 1;
                self.counters.rx_bytes += len as u64;
                return Some(Arrived::Frame(&self.datagram[..len]));
            }
            let n = self.device.recv(&mut self.inbox).ok()?;
            if n < self.before + ETHERNET_HEADER {
                self.counters.rx_malformed += 1;
                continue;
            }
            let held = match self.before {
                0 => Some(Held::One(1)),
                _ => {
                    let header = VirtioNetHdr::decode(&self.inbox).ok();
                    let frame = &mut self.inbox[self.before..n];
                    header.and_then(|header| offload::open(&header, frame))
                }
            };
            match held {
                Some(Held::One(frames)) => {
                    self.counters.rx_frames += frames;
                    self.counters.rx_bytes += (n - self.before) as u64;
                    return Some(Arrived::Frame(&self.inbox[self.before..n]));
                }
                Some(Held::Datagrams(some)) => self.datagrams = Some(some),
                None => self.counters.rx_malformed += 1,
            }
        }
    }
    fn tx_frame(&mut self, _now: NicTime, _dst: MacAddr) -> Option<&mut [u8]> {
        if self.held {
            self.send();
        }
        if self.held {
            return None;
        }
        let at = self.made_at();
        let room = ETHERNET_HEADER + self.capabilities.mtu;
        Some(&mut self.out[at..at + room])
    }
    fn tx_commit(&mut self, _now: NicTime, len: usize) {
        if !is_frame(len, self.capabilities.mtu) {
            self.counters.tx_dropped += 1;
            return;
        }
        if let Some(next) = &mut self.next {
            if !next.append(&mut self.out[self.before..], len) {
                self.behind = Some(len);
                self.send();
            }
        } else if !self.keep(len) {
            self.send();
        }
    }
    fn flush(&mut self, _now: NicTime) {
        self.send();
        if !self.held {
            // One that was behind another.
            self.send();
        }
    }
    fn next_timer(&self) -> Option<NicTime> {
        // A held frame is tried again at the next step.
        self.held.then_some(NicTime(0))
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
