//! Capture of a port's packets as pcapng, for Wireshark and tshark.
//!
//! A frame is recorded as it is. A datagram is recorded behind the IP and UDP headers that the
//! kernel gives it: not fragmented, of IPv4 with identification 0.
//!
//! Timestamps have nanoseconds. Time is the NIC's; the offset to the calendar is given once.

use std::borrow::Cow;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::BorrowedFd;
use std::time::Duration;

use pcap_file::pcapng::blocks::enhanced_packet::{EnhancedPacketBlock, EnhancedPacketOption};
use pcap_file::pcapng::blocks::interface_description::{
    InterfaceDescriptionBlock, InterfaceDescriptionOption,
};
use pcap_file::pcapng::PcapNgWriter;
use pcap_file::{DataLink, PcapError};

use super::{
    Arrived, Batch, Capabilities, Destination, MacAddr, Medium, Port, PortCounters, RefusedBy,
};
use crate::wire::udp::{self, headers_to};
use crate::wire::ETHERNET_HEADER;
use crate::NicTime;

/// Nanoseconds: 10^-9, pcapng §4.2 `if_tsresol`.
const NANOSECONDS: u8 = 9;

/// A capture could not be started.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot start the capture: {source}; check that its file can be written and the disk has room"
)]
pub struct CaptureError {
    #[source]
    source: PcapError,
}

/// Direction in an enhanced packet block's flags (pcapng §4.3.1).
#[derive(Debug, Clone, Copy)]
enum Direction {
    In = 1,
    Out = 2,
}

/// The file, with what turns a packet into a record.
struct Recorder<W: Write> {
    writer: PcapNgWriter<W>,
    medium: Medium,
    epoch: Duration,
    /// Writing failed: the capture ends, the NIC does not.
    failed: bool,
    /// Room for a packet with its headers.
    scratch: Box<[u8]>,
}

impl<W: Write> Recorder<W> {
    /// Bytes that are recorded before those of a packet.
    fn headers(&self) -> usize {
        match self.medium {
            Medium::Ethernet(_) => 0,
            Medium::Udp(local) => headers_to(local.ip()),
        }
    }

    /// Records a frame.
    fn frame(&mut self, now: NicTime, frame: &[u8], direction: Direction) {
        if self.failed {
            return;
        }
        let block = EnhancedPacketBlock {
            interface_id: 0,
            timestamp: self.epoch + Duration::from_nanos(now.0),
            original_len: frame.len() as u32,
            data: Cow::Borrowed(frame),
            options: vec![EnhancedPacketOption::Flags(direction as u32)],
        };
        if let Err(error) = self.writer.write_pcapng_block(block) {
            tracing::warn!(%error, "the capture ends here: its file cannot be written");
            self.failed = true;
        }
    }

    /// Records a packet of `len` bytes, which lies behind its headers in the scratch room: those of
    /// a datagram between two sockets are written first.
    fn packet(
        &mut self,
        now: NicTime,
        len: usize,
        sockets: Option<(SocketAddr, SocketAddr, u8)>,
        direction: Direction,
    ) {
        let whole = self.headers() + len;
        let mut scratch = std::mem::take(&mut self.scratch);
        let packet = &mut scratch[..whole];
        if sockets.is_none_or(|(from, to, ecn)| udp::emit_any(packet, from, to, ecn)) {
            self.frame(now, packet, direction);
        }
        self.scratch = scratch;
    }
}

/// A port whose packets are recorded.
pub struct Capture<W: Write> {
    inner: Box<dyn Port>,
    recorder: Recorder<W>,
    /// Where the frame being written goes. It lies in the scratch room until it is committed.
    dst: MacAddr,
}

impl<W: Write + Send> Capture<W> {
    /// Records `inner` into `file`. `epoch` is the calendar time, since 1970, of NIC time 0.
    ///
    /// # Errors
    /// [`CaptureError`] when the file's header cannot be written.
    pub fn new(inner: Box<dyn Port>, file: W, epoch: Duration) -> Result<Self, CaptureError> {
        let Capabilities { medium, mtu, .. } = *inner.capabilities();
        let (linktype, headers) = match medium {
            Medium::Ethernet(_) => (DataLink::ETHERNET, ETHERNET_HEADER),
            Medium::Udp(local) => (DataLink::RAW, headers_to(local.ip())),
        };
        let start = |file| {
            let mut writer = PcapNgWriter::new(file)?;
            writer.write_pcapng_block(InterfaceDescriptionBlock {
                linktype,
                snaplen: 0,
                options: vec![
                    InterfaceDescriptionOption::IfName(Cow::Owned(inner.describe())),
                    InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
                ],
            })?;
            Ok(writer)
        };
        Ok(Capture {
            recorder: Recorder {
                writer: start(file).map_err(|source| CaptureError { source })?,
                medium,
                epoch,
                failed: false,
                scratch: vec![0; headers + mtu].into(),
            },
            inner,
            dst: MacAddr::default(),
        })
    }

    /// Ends the capture and gives the file back, for its owner to flush.
    pub fn into_file(self) -> W {
        self.recorder.writer.into_inner()
    }
}

impl<W: Write + Send> Port for Capture<W> {
    fn describe(&self) -> String {
        format!("{}, captured", self.inner.describe())
    }

    fn report(&self) -> Vec<String> {
        self.inner.report()
    }
    fn no_way(&self, to: Option<MacAddr>) -> Option<String> {
        self.inner.no_way(to)
    }
    fn capabilities(&self) -> &Capabilities {
        self.inner.capabilities()
    }
    fn mtu_to(&mut self, to: IpAddr) -> usize {
        self.inner.mtu_to(to)
    }
    fn receive(&mut self, now: NicTime) -> Option<Arrived<'_>> {
        let arrived = self.inner.receive(now)?;
        let recorder = &mut self.recorder;
        match (&arrived, recorder.medium) {
            (Arrived::Datagram(d), Medium::Udp(local)) => {
                let headers = recorder.headers();
                let room = recorder.scratch.get_mut(headers..headers + d.bytes.len());
                if let Some(room) = room {
                    room.copy_from_slice(d.bytes);
                    let sockets = Some((d.from, local, d.ecn));
                    recorder.packet(now, d.bytes.len(), sockets, Direction::In);
                }
            }
            _ => recorder.frame(now, &arrived, Direction::In),
        }
        Some(arrived)
    }
    fn is_quiet(&self) -> bool {
        self.inner.is_quiet()
    }

    fn tx_frame(&mut self, now: NicTime, dst: MacAddr) -> Option<&mut [u8]> {
        self.inner.tx_frame(now, dst)?;
        self.dst = dst;
        Some(&mut self.recorder.scratch)
    }
    fn tx_commit(&mut self, now: NicTime, len: usize) {
        // Asked for in `tx_frame` already: the same room again.
        let Some(room) = self.inner.tx_frame(now, self.dst) else {
            return;
        };
        let fits = room.get_mut(..len).zip(self.recorder.scratch.get(..len));
        if let Some((room, frame)) = fits.filter(|(r, _)| r.len() >= ETHERNET_HEADER) {
            room.copy_from_slice(frame);
            self.recorder.packet(now, len, None, Direction::Out);
        }
        // One of a wrong length is dropped and counted there.
        self.inner.tx_commit(now, len);
    }
    fn send(&mut self, now: NicTime, to: &Destination, batch: &Batch, from: usize) -> usize {
        let taken = self.inner.send(now, to, batch, from);
        let recorder = &mut self.recorder;
        let headers = recorder.headers();
        let sockets = match (*to, recorder.medium) {
            (Destination::Socket { to, ecn, .. }, Medium::Udp(local)) => Some((local, to, ecn)),
            _ => None,
        };
        let shortest = if sockets.is_some() {
            0
        } else {
            ETHERNET_HEADER
        };
        for packet in from..from + taken {
            let len = batch.len_of(packet);
            // What is shorter or longer than any packet was dropped.
            if len >= shortest && batch.copy_to(packet, &mut recorder.scratch[headers..]) {
                recorder.packet(now, len, sockets, Direction::Out);
            }
        }
        taken
    }

    fn flush(&mut self, now: NicTime) {
        self.inner.flush(now);
    }
    fn next_timer(&self) -> Option<NicTime> {
        self.inner.next_timer()
    }
    fn poll_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        self.inner.poll_fds(fds);
    }
    fn next_refused(&mut self) -> Option<RefusedBy> {
        self.inner.next_refused()
    }
    fn reached_by_tree(&self) -> usize {
        self.inner.reached_by_tree()
    }
    fn has_tree(&self) -> bool {
        self.inner.has_tree()
    }
    fn counters(&self) -> PortCounters {
        self.inner.counters()
    }
}
