//! Capture of a port's frames or datagrams as pcapng, for Wireshark and tshark.
//!
//! A datagram is recorded behind the IP and UDP headers that the kernel gives it: not fragmented, of IPv4 with identification 0.
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

use super::{Batch, Checksums, Datagram, DatagramPort, MacAddr, Port, PortCounters, Segmentation};
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

struct Recorder<W: Write> {
    writer: PcapNgWriter<W>,
    epoch: Duration,
    /// Writing failed: the capture ends, the NIC does not.
    failed: bool,
}

impl<W: Write> Recorder<W> {
    fn start(
        file: W,
        name: String,
        linktype: DataLink,
        epoch: Duration,
    ) -> Result<Recorder<W>, CaptureError> {
        let start = |file| {
            let mut writer = PcapNgWriter::new(file)?;
            writer.write_pcapng_block(InterfaceDescriptionBlock {
                linktype,
                snaplen: 0,
                options: vec![
                    InterfaceDescriptionOption::IfName(Cow::Owned(name)),
                    InterfaceDescriptionOption::IfTsResol(NANOSECONDS),
                ],
            })?;
            Ok(writer)
        };
        Ok(Recorder {
            writer: start(file).map_err(|source| CaptureError { source })?,
            epoch,
            failed: false,
        })
    }

    fn record(&mut self, now: NicTime, frame: &[u8], direction: Direction) {
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
}

/// A port whose frames are recorded.
pub struct Capture<P, W: Write> {
    inner: P,
    recorder: Recorder<W>,
    /// The frame being written: recorded when it is committed.
    scratch: Box<[u8]>,
    dst: MacAddr,
}

impl<P: Port, W: Write + Send> Capture<P, W> {
    /// Records `inner` into `file`. `epoch` is the calendar time, since 1970, of NIC time 0.
    ///
    /// # Errors
    /// [`CaptureError`] when the file's header cannot be written.
    pub fn new(inner: P, file: W, epoch: Duration) -> Result<Self, CaptureError> {
        let recorder = Recorder::start(file, inner.describe(), DataLink::ETHERNET, epoch)?;
        Ok(Capture {
            scratch: vec![0; ETHERNET_HEADER + inner.mtu()].into(),
            inner,
            recorder,
            dst: MacAddr::default(),
        })
    }

    /// Ends the capture and gives the file back, for its owner to flush.
    pub fn into_file(self) -> W {
        self.recorder.writer.into_inner()
    }
}

impl<P: Port, W: Write + Send> Port for Capture<P, W> {
    fn describe(&self) -> String {
        format!("{}, captured", self.inner.describe())
    }
    fn mac(&self) -> MacAddr {
        self.inner.mac()
    }
    fn mtu(&self) -> usize {
        self.inner.mtu()
    }
    fn checksums(&self) -> Checksums {
        self.inner.checksums()
    }
    fn rx_frame(&mut self, now: NicTime) -> Option<&[u8]> {
        let frame = self.inner.rx_frame(now)?;
        self.recorder.record(now, frame, Direction::In);
        Some(frame)
    }
    fn tx_frame(&mut self, now: NicTime, dst: MacAddr) -> Option<&mut [u8]> {
        self.inner.tx_frame(now, dst)?;
        self.dst = dst;
        Some(&mut self.scratch)
    }
    fn tx_commit(&mut self, now: NicTime, len: usize) {
        // Asked for in `tx_frame` already: the same room again.
        let Some(room) = self.inner.tx_frame(now, self.dst) else {
            return;
        };
        let fits = room.get_mut(..len).zip(self.scratch.get(..len));
        if let Some((room, frame)) = fits.filter(|(r, _)| r.len() >= ETHERNET_HEADER) {
            room.copy_from_slice(frame);
            self.recorder.record(now, frame, Direction::Out);
        }
        // One of a wrong length is dropped and counted there.
        self.inner.tx_commit(now, len);
    }
    fn is_quiet(&self) -> bool {
        self.inner.is_quiet()
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
    fn next_refused(&mut self) -> Option<MacAddr> {
        self.inner.next_refused()
    }
    fn counters(&self) -> PortCounters {
        self.inner.counters()
    }
}

/// A port of datagrams whose packets are recorded.
pub struct CaptureDatagrams<P, W: Write> {
    inner: P,
    recorder: Recorder<W>,
    /// The packet being recorded.
    scratch: Box<[u8]>,
    /// The last time that was told: sending is not told any.
    now: NicTime,
}

impl<P: DatagramPort, W: Write + Send> CaptureDatagrams<P, W> {
    /// As [`Capture::new`].
    ///
    /// # Errors
    /// [`CaptureError`] when the file's header cannot be written.
    pub fn new(inner: P, file: W, epoch: Duration) -> Result<Self, CaptureError> {
        Ok(CaptureDatagrams {
            recorder: Recorder::start(file, inner.describe(), DataLink::RAW, epoch)?,
            scratch: vec![0; headers_to(inner.local().ip()) + inner.mtu()].into(),
            inner,
            now: NicTime(0),
        })
    }

    /// Ends the capture and gives the file back, for its owner to flush.
    pub fn into_file(self) -> W {
        self.recorder.writer.into_inner()
    }
}

impl<P: DatagramPort, W: Write + Send> DatagramPort for CaptureDatagrams<P, W> {
    fn describe(&self) -> String {
        format!("{}, captured", self.inner.describe())
    }
    fn local(&self) -> SocketAddr {
        self.inner.local()
    }
    fn mtu(&self) -> usize {
        self.inner.mtu()
    }
    fn mtu_to(&mut self, to: IpAddr) -> usize {
        self.inner.mtu_to(to)
    }
    fn segmentation(&self) -> Segmentation {
        self.inner.segmentation()
    }
    fn receive_buffer(&self) -> usize {
        self.inner.receive_buffer()
    }

    fn send(
        &mut self,
        to: SocketAddr,
        ecn: u8,
        segmented: bool,
        batch: &Batch,
        from: usize,
    ) -> usize {
        let taken = self.inner.send(to, ecn, segmented, batch, from);
        let local = self.inner.local();
        let headers = headers_to(local.ip());
        for packet in from..from + taken {
            let whole = headers + batch.len_of(packet);
            // What is longer than any packet was dropped.
            if !batch.copy_to(packet, &mut self.scratch[headers..]) {
                continue;
            }
            let whole = &mut self.scratch[..whole];
            if udp::emit_any(whole, local, to, ecn) {
                self.recorder.record(self.now, whole, Direction::Out);
            }
        }
        taken
    }

    fn receive(&mut self, now: NicTime) -> Option<Datagram<'_>> {
        self.now = now;
        let local = self.inner.local();
        let d = self.inner.receive(now)?;
        let headers = headers_to(local.ip());
        if let Some(room) = self.scratch.get_mut(..headers + d.bytes.len()) {
            room[headers..].copy_from_slice(d.bytes);
            if udp::emit_any(room, d.from, local, d.ecn) {
                self.recorder.record(now, room, Direction::In);
            }
        }
        Some(d)
    }
    fn flush(&mut self, now: NicTime) {
        self.now = now;
        self.inner.flush(now);
    }
    fn next_timer(&self) -> Option<NicTime> {
        self.inner.next_timer()
    }
    fn poll_fds<'a>(&'a self, fds: &mut Vec<BorrowedFd<'a>>) {
        self.inner.poll_fds(fds);
    }
    fn next_refused(&mut self) -> Option<SocketAddr> {
        self.inner.next_refused()
    }
    fn counters(&self) -> PortCounters {
        self.inner.counters()
    }
}
