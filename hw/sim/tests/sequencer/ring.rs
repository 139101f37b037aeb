//! A ring of `sequencer.sv`, each with `reduce.sv`, memories and links with latency, and the
//! programs that it executes.

use std::collections::VecDeque;
use std::ops::Range;

use crate::programs::Job;
use ringbell_gtlb::testing::Rng;
use ringbell_hw_sim::ring::Step;
use ringbell_hw_sim::stream::{Beat, BEAT};
use ringbell_hw_sim::{reduce, sequencer};

/// Deadline of the simulated block, in cycles.
pub(crate) const DEADLINE: u64 = 5_000;

/// Cycles that things take, and whether everything also waits at random.
#[derive(Clone, Copy)]
pub(crate) struct Times {
    pub(crate) gpu: u64,
    pub(crate) card: u64,
    pub(crate) link: u64,
    pub(crate) stalls: bool,
}

/// Beats between two NICs, with the cycle from which each can be taken.
#[derive(Default)]
pub(crate) struct Link {
    pub(crate) metas: VecDeque<(u64, u32)>,
    pub(crate) beats: VecDeque<(u64, Beat)>,
}
/// Beats that a receiver holds beside those on the wire: the 64 KiB of a connection of FpgaNIC's
/// transport (§2.4).
const LINK_BEATS: usize = 1024;

pub(crate) struct Nic {
    pub(crate) rtl: sequencer::Block,
    pub(crate) reduce: reduce::Block,
    pub(crate) gpu: Vec<u8>,
    pub(crate) card: Vec<[u32; BEAT / 4]>,
    /// Ranges that are read from GPU memory, and the cycle from which; the one being written.
    pub(crate) reads: VecDeque<(u64, Range<usize>)>,
    pub(crate) write: Range<usize>,
    pub(crate) stores: [VecDeque<(u64, usize, [u32; BEAT / 4])>; 2],
    pub(crate) loads: [VecDeque<(u64, usize)>; 2],
    pub(crate) status: Option<u64>,
    /// Cycles in which outputs lag their column: (step, out_step) seen when a step is half done.
    pub(crate) columns: Vec<(u64, u64)>,
}

/// The state table: steps and beats of inputs with and without a message, and of outputs likewise.
pub(crate) fn state(rtl: &sequencer::Block) -> ([u64; 4], [u64; 4]) {
    let beats = rtl
        .at_beat_o()
        .iter()
        .rev()
        .fold(0, |all, w| all << 32 | u128::from(*w));
    let step = |i| rtl.at_step_o() >> (7 * i) & 0x7f;
    let beat = |i| (beats >> (26 * i)) as u64 & 0x3ff_ffff;
    (std::array::from_fn(step), std::array::from_fn(beat))
}

pub(crate) struct Ring {
    pub(crate) nics: Vec<Nic>,
    /// Into each NIC.
    pub(crate) links: Vec<Link>,
    pub(crate) times: Times,
    pub(crate) rng: Rng,
    pub(crate) now: u64,
}

impl Ring {
    pub(crate) fn new(ranks: usize, times: Times, seed: u64) -> Ring {
        let nic = |_| Nic {
            rtl: sequencer::Block::new(),
            reduce: reduce::Block::new(),
            gpu: Vec::new(),
            card: Vec::new(),
            reads: VecDeque::new(),
            write: 0..0,
            stores: Default::default(),
            loads: Default::default(),
            status: None,
            columns: Vec::new(),
        };
        let mut ring = Ring {
            nics: (0..ranks).map(nic).collect(),
            links: (0..ranks).map(|_| Link::default()).collect(),
            times,
            rng: Rng::new(seed),
            now: 0,
        };
        ring.reset();
        ring
    }

    /// Of all NICs and what lies between them.
    pub(crate) fn reset(&mut self) {
        for nic in &mut self.nics {
            for clear in [0, 1] {
                nic.rtl.rst_ni(clear);
                nic.reduce.rst_ni(clear);
                if clear == 0 {
                    nic.rtl.step_we_i(0);
                    nic.rtl.start_valid_i(0);
                    nic.rtl.fault_i(0);
                    // A beat that is taken is in memory.
                    nic.rtl.written_i(1);
                    nic.rtl.tick();
                    nic.reduce.tick();
                }
            }
            nic.reads.clear();
            nic.write = 0..0;
            nic.stores = Default::default();
            nic.loads = Default::default();
            nic.status = None;
        }
        self.links.iter_mut().for_each(|l| *l = Link::default());
    }

    fn load(&mut self, rank: usize, steps: &[Step], dtype: u8, op: u8) {
        let nic = &mut self.nics[rank];
        let rtl = &mut nic.rtl;
        let mut line = 0;
        rtl.step_we_i(1);
        for (n, step) in steps.iter().enumerate() {
            rtl.step_index_i(n as u64);
            rtl.step_net_in_i(u64::from(step.net_in));
            rtl.step_net_out_i(u64::from(step.net_out));
            rtl.step_gpu_in_i(u64::from(step.read.is_some()));
            rtl.step_gpu_out_i(u64::from(step.write.is_some()));
            rtl.step_read_va_i(step.read.unwrap_or(0));
            rtl.step_write_va_i(step.write.unwrap_or(0));
            rtl.step_slot_i(line as u64);
            rtl.step_len_i(step.bytes.into());
            rtl.tick();
            line += step.lines() as usize;
        }
        rtl.step_we_i(0);
        nic.card = vec![[0xdead_beef; BEAT / 4]; line];
        nic.columns.clear();
        nic.status = None;
        rtl.start_steps_i(steps.len() as u64);
        rtl.start_dtype_i(u64::from(dtype));
        rtl.start_redop_i(u64::from(op));
        rtl.eval();
        assert_eq!(rtl.start_ready_o(), 1);
        rtl.start_valid_i(1);
        rtl.tick();
        rtl.start_valid_i(0);
    }

    /// Every rank's destination is that of the Rust simulation, bit for bit.
    pub(crate) fn compare(&self, job: &Job) {
        for (rank, (start, wanted)) in job.wanted().into_iter().enumerate() {
            let got = &self.nics[rank].gpu[start..][..wanted.len()];
            assert!(got == wanted, "rank {rank} has other bits");
        }
    }

    pub(crate) fn cycle(&mut self) {
        let (now, times) = (self.now, self.times);
        let ranks = self.nics.len();
        for rank in 0..ranks {
            let next = (rank + 1) % ranks;
            let mut may = || !times.stalls || self.rng.below(4) != 0;
            let due = |at: u64| at <= now;
            let nic = &mut self.nics[rank];
            let rtl = &mut nic.rtl;

            // What the surroundings offer.
            let read = nic.reads.front().filter(|r| due(r.0)).map(|r| r.1.clone());
            let read = read.filter(|_| may());
            rtl.read_valid_i(u64::from(read.is_some()));
            if let Some(range) = &read {
                let end = range.end.min(range.start + BEAT);
                rtl.read_i(&Beat::new(&nic.gpu[range.start..end], false).data);
            }
            let ready = [(); 7].map(|()| may());
            let [commands, writes, sends, ports @ ..] = ready;
            let mask = |two: [bool; 2]| u64::from(two[0]) | u64::from(two[1]) << 1;
            let stores = mask([ports[0], ports[1]]);
            let loads = mask([ports[2], ports[3]]);
            let sends = sends && self.links[next].beats.len() < LINK_BEATS + times.link as usize;
            rtl.read_cmd_ready_i(u64::from(commands));
            rtl.write_cmd_ready_i(u64::from(commands));
            rtl.tx_meta_ready_i(u64::from(commands));
            rtl.report_ready_i(u64::from(commands));
            rtl.write_ready_i(u64::from(writes));
            rtl.tx_ready_i(u64::from(sends));
            rtl.store_ready_i(stores);
            rtl.load_ready_i(loads);
            let link = &mut self.links[rank];
            let meta = link
                .metas
                .front()
                .filter(|m| due(m.0) && may())
                .map(|m| m.1);
            rtl.rx_meta_valid_i(u64::from(meta.is_some()));
            rtl.rx_meta_len_i(u64::from(meta.unwrap_or(0)));
            let beat = link
                .beats
                .front()
                .filter(|b| due(b.0) && may())
                .map(|b| b.1);
            rtl.rx_valid_i(u64::from(beat.is_some()));
            if let Some(beat) = beat {
                rtl.rx_i(&beat.data);
                rtl.rx_last_i(u64::from(beat.last));
            }
            let (mut acks, mut loaded, mut lines) = (0, 0, [0; BEAT / 2]);
            for port in 0..2 {
                if nic.stores[port].front().is_some_and(|s| due(s.0)) {
                    let (_, line, data) = nic.stores[port].pop_front().expect("seen");
                    nic.card[line] = data;
                    acks |= 1 << port;
                }
                if nic.loads[port].front().is_some_and(|l| due(l.0)) {
                    let (_, line) = nic.loads[port].pop_front().expect("seen");
                    lines[port * BEAT / 4..][..BEAT / 4].copy_from_slice(&nic.card[line]);
                    loaded |= 1 << port;
                }
            }
            rtl.store_ack_i(acks);
            rtl.load_valid_i(loaded);
            rtl.load_i(&lines);

            // `reduce` beside it.
            rtl.eval();
            let reduce = &mut nic.reduce;
            reduce.out_ready_i(rtl.reduced_ready_o());
            reduce.eval();
            rtl.reduce_ready_i(reduce.in_ready_o());
            rtl.reduced_valid_i(reduce.out_valid_o());
            rtl.reduced_i(&reduce.out_o());
            rtl.reduced_last_i(reduce.out_last_o());
            rtl.reduced_error_i(reduce.out_error_o());
            rtl.eval();
            reduce.in_valid_i(rtl.reduce_valid_o());
            reduce.dtype_i(rtl.reduce_dtype_o());
            reduce.redop_i(rtl.reduce_redop_o());
            reduce.copy_i(rtl.reduce_copy_o());
            reduce.a_i(&rtl.reduce_a_o());
            reduce.b_i(&rtl.reduce_b_o());
            reduce.last_i(rtl.reduce_last_o());
            reduce.eval();

            // What was taken.
            if rtl.read_cmd_valid_o() == 1 && commands {
                let start = rtl.read_cmd_va_o() as usize;
                let range = start..start + rtl.read_cmd_len_o() as usize;
                nic.reads.push_back((now + times.gpu, range));
            }
            if read.is_some() && rtl.read_ready_o() == 1 {
                let range = &mut nic.reads[0].1;
                range.start += BEAT;
                if range.start >= range.end {
                    nic.reads.pop_front();
                }
            }
            if rtl.write_cmd_valid_o() == 1 && commands {
                assert!(nic.write.is_empty(), "a write is not whole");
                let start = rtl.write_cmd_va_o() as usize;
                nic.write = start..start + rtl.write_cmd_len_o() as usize;
            }
            if rtl.write_valid_o() == 1 && writes {
                let beat = Beat {
                    data: rtl.write_o(),
                    keep: rtl.write_keep_o(),
                    last: rtl.write_last_o() == 1,
                };
                let bytes = beat.bytes();
                let at = nic.write.start;
                nic.gpu[at..at + bytes.len()].copy_from_slice(&bytes);
                nic.write.start += bytes.len();
                assert_eq!(nic.write.is_empty(), beat.last);
            }
            let (stored, asked) = (rtl.store_valid_o() & stores, rtl.load_valid_o() & loads);
            for port in 0..2 {
                let line = |both: u64| (both >> (26 * port)) as usize & 0x3ff_ffff;
                if stored >> port & 1 == 1 {
                    let data = rtl.store_o()[port * BEAT / 4..][..BEAT / 4].try_into();
                    let data = data.expect("a line");
                    nic.stores[port].push_back((now + times.card, line(rtl.store_line_o()), data));
                }
                if asked >> port & 1 == 1 {
                    nic.loads[port].push_back((now + times.card, line(rtl.load_line_o())));
                }
            }
            if rtl.report_valid_o() == 1 && commands {
                nic.status = Some(rtl.report_status_o());
            }
            if meta.is_some() && rtl.rx_meta_ready_o() == 1 {
                link.metas.pop_front();
            }
            if beat.is_some() && rtl.rx_ready_o() == 1 {
                link.beats.pop_front();
            }
            let link = &mut self.links[next];
            if rtl.tx_meta_valid_o() == 1 && commands {
                link.metas
                    .push_back((now + times.link, rtl.tx_meta_len_o() as u32));
            }
            if rtl.tx_valid_o() == 1 && sends {
                let beat = Beat {
                    data: rtl.tx_o(),
                    keep: rtl.tx_keep_o(),
                    last: rtl.tx_last_o() == 1,
                };
                link.beats.push_back((now + times.link, beat));
            }
        }
        for nic in &mut self.nics {
            nic.rtl.tick();
            nic.reduce.tick();
        }
        self.now += 1;
    }

    pub(crate) fn until(&mut self, done: impl Fn(&Ring) -> bool) {
        let limit = self.now + 2_000_000;
        while !done(self) {
            self.cycle();
            assert!(self.now < limit, "a wait without end");
        }
    }

    /// Until every rank has reported.
    pub(crate) fn run(&mut self) -> Vec<u64> {
        self.until(|ring| ring.nics.iter().all(|n| n.status.is_some()));
        self.nics.iter().filter_map(|n| n.status).collect()
    }
}

/// Loads all NICs with some collectives, one behind the other, and starts them.
pub(crate) fn start(jobs: &mut [Job], ring: &mut Ring) {
    for rank in 0..ring.nics.len() {
        let mut gpu = vec![0x5a; 64 + rank];
        let steps = |job: &mut Job| job.place(rank, &mut gpu, 0);
        let steps: Vec<Step> = jobs.iter_mut().flat_map(steps).collect();
        ring.nics[rank].gpu = gpu;
        ring.load(rank, &steps, jobs[0].dtype.0 as u8, jobs[0].op as u8);
    }
}

/// Latencies of the order of a card's: PCIe reads 0.8 µs, its memory 0.12 µs, a switched link 0.8
/// µs, at 250 MHz.
pub(crate) const CARD: Times = Times {
    gpu: 200,
    card: 30,
    link: 200,
    stalls: false,
};
