//! [`Ring`]: what surrounds block `ring` of a card: on-card memory, and the streams from and to the neighbours.

use std::collections::VecDeque;

use crate::card::LINE;
use crate::messages::Messages;
use crate::nic_top::Block;
use crate::ring::{Piece, Report};
use crate::stream::Beat;

/// Cycles until on-card memory has written or read a line: 0.12 µs.
const MEMORY: u64 = 30;
/// Pieces for the next NIC that wait to be taken.
const WAITING: usize = 2;

type Line = [u32; LINE / 4];

/// See the module text.
#[derive(Debug, Default)]
pub(crate) struct Ring {
    /// A collective was loaded once; before that no port is driven.
    pub(crate) used: bool,
    /// From a start to its report.
    pub(crate) running: bool,
    pub(crate) report: Option<Report>,
    /// From the previous NIC, and to the next.
    pub(crate) pieces_in: VecDeque<Piece>,
    pub(crate) pieces_out: VecDeque<Piece>,
    /// Steps that have ended with a collective that was done, and beats to the next NIC.
    pub(crate) steps: u64,
    pub(crate) beats: u64,
    /// Steps of the collective under way.
    pub(crate) loaded: u64,
    memory: Vec<Line>,
    /// By port: when they are done, the line, and of writes the data.
    stores: [VecDeque<(u64, usize, Line)>; 2],
    loads: [VecDeque<(u64, usize)>; 2],
    offered: bool,
    ready: Ready,
    /// For a NIC.
    pub(crate) messages: Messages,
    /// Cycles in which it was at work, and the last of them.
    pub(crate) cycles: u64,
    pub(crate) worked: u64,
}

/// What the surroundings take in this cycle.
#[derive(Debug, Default)]
struct Ready {
    meta: bool,
    beat: bool,
    report: bool,
    stores: u64,
    loads: u64,
}

impl Ring {
    /// Forgets what is under way; on-card memory keeps its lines.
    pub(crate) fn reset(&mut self) {
        *self = Ring {
            used: self.used,
            steps: self.steps,
            beats: self.beats,
            cycles: self.cycles,
            worked: self.worked,
            memory: std::mem::take(&mut self.memory),
            ..Ring::default()
        };
    }

    /// Forgets the streams, which the transport has begun again. What memory is asked for still
    /// comes.
    pub(crate) fn clear(&mut self) {
        self.running = false;
        self.report = None;
        self.pieces_in.clear();
        self.pieces_out.clear();
        self.offered = false;
        self.messages = Messages::default();
    }

    /// Counts a cycle in which something moves, and those before it that waited for memory, up to
    /// `longest`. A longer wait was one for the network.
    pub(crate) fn count(&mut self, now: u64, longest: u64) {
        let gap = now - self.worked;
        self.cycles += if gap <= longest { gap } else { 1 };
        self.worked = now;
    }

    /// Whether something moves in this cycle, or comes from memory.
    pub(crate) fn is_moving(&self, rtl: &Block) -> bool {
        let ready = &self.ready;
        let is = |valid: u64, taken: bool| valid == 1 && taken;
        self.running
            && (self.stores.iter().any(|s| !s.is_empty())
                || self.loads.iter().any(|l| !l.is_empty())
                || rtl.ring_store_valid_o() & ready.stores != 0
                || rtl.ring_load_valid_o() & ready.loads != 0
                || is(rtl.ring_tx_meta_valid_o(), ready.meta)
                || is(rtl.ring_tx_valid_o(), ready.beat)
                || rtl.ring_report_valid_o() == 1
                || self.takes(rtl))
    }

    /// Whether the block takes what is offered.
    fn takes(&self, rtl: &Block) -> bool {
        match self.pieces_in.front().filter(|_| self.offered) {
            Some(Piece::Message(_)) => rtl.ring_rx_meta_ready_o() == 1,
            Some(Piece::Beat(_)) => rtl.ring_rx_ready_o() == 1,
            None => false,
        }
    }

    /// Sets the inputs of a cycle.
    pub(crate) fn drive(&mut self, rtl: &mut Block, now: u64, may: &mut dyn FnMut() -> bool) {
        if !self.used {
            return;
        }
        let mut two = || u64::from(may()) | u64::from(may()) << 1;
        let (stores, loads) = (two(), two());
        let room = self.pieces_out.len() < WAITING;
        self.ready = Ready {
            meta: may() && room,
            beat: may() && room,
            report: may(),
            stores,
            loads,
        };
        rtl.ring_tx_meta_ready_i(self.ready.meta.into());
        rtl.ring_tx_ready_i(self.ready.beat.into());
        rtl.ring_report_ready_i(self.ready.report.into());
        rtl.ring_store_ready_i(stores);
        rtl.ring_load_ready_i(loads);
        // What was offered stays.
        self.offered |= !self.pieces_in.is_empty() && may();
        let piece = self.pieces_in.front().filter(|_| self.offered);
        rtl.ring_rx_meta_valid_i(matches!(piece, Some(Piece::Message(_))).into());
        rtl.ring_rx_valid_i(matches!(piece, Some(Piece::Beat(_))).into());
        match piece {
            Some(Piece::Message(len)) => rtl.ring_rx_meta_len_i((*len).into()),
            Some(Piece::Beat(beat)) => {
                rtl.ring_rx_data_i(&beat.data);
                rtl.ring_rx_last_i(beat.last.into());
            }
            None => {}
        }
        let (mut acks, mut loaded, mut lines) = (0, 0, [0; LINE / 2]);
        for port in 0..2 {
            if self.stores[port].front().is_some_and(|s| s.0 <= now) {
                let (_, line, data) = self.stores[port].pop_front().expect("seen");
                let lines = self.memory.len().max(line + 1);
                self.memory.resize(lines, [0xdead_beef; LINE / 4]);
                self.memory[line] = data;
                acks |= 1 << port;
            }
            if self.loads[port].front().is_some_and(|l| l.0 <= now) {
                let (_, line) = self.loads[port].pop_front().expect("seen");
                let line = self.memory.get(line).unwrap_or(&[0xdead_beef; LINE / 4]);
                lines[port * LINE / 4..][..LINE / 4].copy_from_slice(line);
                loaded |= 1 << port;
            }
        }
        rtl.ring_store_ack_i(acks);
        rtl.ring_load_valid_i(loaded);
        if loaded != 0 {
            rtl.ring_load_i(&lines);
        }
    }

    /// Takes the outputs of a cycle.
    pub(crate) fn finish(&mut self, rtl: &Block, now: u64) {
        if !self.used {
            return;
        }
        if self.takes(rtl) {
            self.pieces_in.pop_front();
            self.offered = false;
        }
        if rtl.ring_tx_meta_valid_o() == 1 && self.ready.meta {
            let len = rtl.ring_tx_meta_len_o() as u32;
            self.pieces_out.push_back(Piece::Message(len));
        }
        if rtl.ring_tx_valid_o() == 1 && self.ready.beat {
            self.beats += 1;
            self.pieces_out.push_back(Piece::Beat(Beat {
                data: rtl.ring_tx_data_o(),
                keep: rtl.ring_tx_keep_o(),
                last: rtl.ring_tx_last_o() == 1,
            }));
        }
        let stored = rtl.ring_store_valid_o() & self.ready.stores;
        let asked = rtl.ring_load_valid_o() & self.ready.loads;
        let line = |both: u64, port: usize| (both >> (26 * port)) as usize & 0x3ff_ffff;
        for port in 0..2 {
            if stored >> port & 1 == 1 {
                let words = rtl.ring_store_o();
                let data = std::array::from_fn(|i| words[port * LINE / 4 + i]);
                let line = line(rtl.ring_store_line_o(), port);
                self.stores[port].push_back((now + MEMORY, line, data));
            }
            if asked >> port & 1 == 1 {
                let line = line(rtl.ring_load_line_o(), port);
                self.loads[port].push_back((now + MEMORY, line));
            }
        }
        if rtl.ring_report_valid_o() == 1 && self.ready.report {
            let report = Report::new(rtl.ring_report_status_o(), rtl.ring_report_va_o());
            self.steps += if report == Report::Done {
                self.loaded
            } else {
                0
            };
            self.report = Some(report);
            self.running = false;
        }
        self.messages.take(&mut self.pieces_out, self.report);
    }
}
