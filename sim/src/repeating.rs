//! Memory that keeps contents which repeat as a pattern and a length.
//!
//! Operands of a simulated collective repeat after [`PERIOD`] bytes, and so do all sums of them.
//! The NICs give and get real bytes. What is written is compared with itself one period later:
//! runs of bytes that repeat are kept as one period, a page in which too many runs meet as its
//! bytes. Any bytes can be kept so, and a wrong byte is found as in any other memory.

use std::sync::{Mutex, MutexGuard, PoisonError};

use ringbell_gtlb::{
    BusError, BusSpan, CompletionWrite, DmaId, DmaMemory, DmaOp, Submitted, PAGE_BYTES,
};

use crate::pattern::{repeat, Pattern, PERIOD};

/// Bus address of the first byte: not 0, so that an offset taken for an address is noticed.
const BUS_BASE: u64 = 1 << 40;
/// Bytes of a page.
const PAGE: usize = PAGE_BYTES as usize;
/// Most runs of a page: more would take half as much memory as its bytes.
const RUNS: usize = 512;

/// Bytes of a page that repeat: that at offset `i` of the page is at `i % PERIOD` of the pattern.
/// Where there are less than a period, the others of the pattern mean nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    start: u32,
    end: u32,
    pattern: Pattern,
}

/// Contents of a page.
#[derive(Debug)]
enum Page {
    /// In order; between them are zeros.
    Runs(Vec<Run>),
    Bytes(Box<[u8]>),
}

/// See the module text.
#[derive(Debug)]
pub(crate) struct RepeatingMemory {
    pages: Mutex<Vec<Page>>,
    len: u64,
}

impl Run {
    fn len(&self) -> usize {
        (self.end - self.start) as usize
    }

    /// The longest run that begins bytes at an offset of a page.
    fn first_of(bytes: &[u8], start: usize) -> Run {
        let mut pattern = [0; PERIOD];
        for (i, byte) in bytes.iter().take(PERIOD).enumerate() {
            pattern[(start + i) % PERIOD] = *byte;
        }
        let len = match bytes.get(PERIOD..) {
            None => bytes.len(),
            Some(later) if *later == bytes[..later.len()] => bytes.len(),
            Some(later) => {
                let same = later.iter().zip(bytes).take_while(|(a, b)| a == b);
                PERIOD + same.count()
            }
        };
        Run {
            start: start as u32,
            end: (start + len) as u32,
            pattern,
        }
    }

    /// The part between two offsets, if there is one.
    fn within(self, start: usize, end: usize) -> Option<Run> {
        let run = Run {
            start: self.start.max(start as u32),
            end: self.end.min(end as u32),
            ..self
        };
        (run.start < run.end).then_some(run)
    }

    /// Whether the byte at a place of the pattern means something.
    fn knows(&self, place: usize) -> bool {
        let first = self.start as usize % PERIOD;
        (place + PERIOD - first) % PERIOD < self.len()
    }

    /// This run and the next behind it as one, if both are of one pattern.
    fn joined(&self, next: &Run) -> Option<Run> {
        if self.end != next.start {
            return None;
        }
        let mut pattern = self.pattern;
        for (place, byte) in pattern.iter_mut().enumerate() {
            match (self.knows(place), next.knows(place)) {
                (true, true) if *byte != next.pattern[place] => return None,
                (false, true) => *byte = next.pattern[place],
                _ => {}
            }
        }
        Some(Run {
            start: self.start,
            end: next.end,
            pattern,
        })
    }

    /// The bytes of the whole run.
    fn expand(&self, into: &mut [u8]) {
        repeat(&self.pattern, self.start as usize, into);
    }
}

impl Page {
    fn read(&self, at: usize, into: &mut [u8]) {
        let runs = match self {
            Page::Bytes(bytes) => return into.copy_from_slice(&bytes[at..at + into.len()]),
            Page::Runs(runs) => runs,
        };
        let end = at + into.len();
        let first = runs.partition_point(|r| r.end as usize <= at);
        let mut done = at;
        for run in &runs[first..] {
            let Some(run) = run.within(at, end) else {
                break;
            };
            let (start, stop) = (run.start as usize, run.end as usize);
            into[done - at..start - at].fill(0);
            run.expand(&mut into[start - at..stop - at]);
            done = stop;
        }
        into[done - at..].fill(0);
    }

    fn write(&mut self, at: usize, from: &[u8]) {
        if from.len() == PAGE {
            *self = Page::Runs(Vec::new());
        }
        let runs = match self {
            Page::Bytes(bytes) => return bytes[at..at + from.len()].copy_from_slice(from),
            Page::Runs(runs) => runs,
        };
        let mut new = Vec::new();
        let mut done = 0;
        while done < from.len() && new.len() <= RUNS {
            let run = Run::first_of(&from[done..], at + done);
            done += run.len();
            new.push(run);
        }
        if new.len() <= RUNS {
            replace(runs, (at, at + from.len()), &new);
        }
        if new.len() > RUNS || runs.len() > RUNS {
            let mut bytes = vec![0; PAGE];
            self.read(0, &mut bytes);
            bytes[at..at + from.len()].copy_from_slice(from);
            *self = Page::Bytes(bytes.into());
        }
    }
}

/// Puts runs in place of all between two offsets, and joins them with their neighbours.
fn replace(runs: &mut Vec<Run>, (at, end): (usize, usize), new: &[Run]) {
    let first = runs.partition_point(|r| r.end as usize <= at);
    let behind = first + runs[first..].partition_point(|r| (r.start as usize) < end);
    let before = runs.get(first).and_then(|r| r.within(0, at));
    let after = behind
        .checked_sub(1)
        .and_then(|i| runs.get(i)?.within(end, PAGE));
    // One that ends or begins there is joined, too.
    let has_neighbour = before.is_none() && first > 0;
    let first = first - usize::from(has_neighbour);
    let before = before.or_else(|| has_neighbour.then(|| runs[first]));
    let has_neighbour = after.is_none() && behind < runs.len();
    let after = after.or_else(|| has_neighbour.then(|| runs[behind]));
    let behind = behind + usize::from(has_neighbour);
    let mut joined: Vec<Run> = Vec::with_capacity(new.len() + 2);
    for run in before.iter().chain(new).chain(&after) {
        match joined.last_mut() {
            Some(last) => match last.joined(run) {
                Some(both) => *last = both,
                None => joined.push(*run),
            },
            None => joined.push(*run),
        }
    }
    runs.splice(first..behind, joined);
}

impl RepeatingMemory {
    /// A memory of so many bytes, a multiple of the page, which are 0.
    pub(crate) fn new(len: u64) -> RepeatingMemory {
        let pages = (0..len / PAGE_BYTES).map(|_| Page::Runs(Vec::new()));
        RepeatingMemory {
            pages: Mutex::new(pages.collect()),
            len,
        }
    }

    /// Bus address of the first byte.
    pub(crate) fn bus(&self) -> u64 {
        BUS_BASE
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Page>> {
        // No caller panics while it holds the lock, so the pages are whole.
        self.pages.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The offset of bytes at a bus address.
    fn at(&self, addr: u64, len: u64) -> Result<usize, BusError> {
        let offset = addr.checked_sub(BUS_BASE);
        let inside = |at: &u64| at.checked_add(len).is_some_and(|end| end <= self.len);
        let offset = offset.filter(inside);
        Ok(offset.ok_or(BusError::OutOfRange { addr, len })? as usize)
    }

    /// Reads bytes by bus address, past the NIC.
    ///
    /// # Errors
    /// [`BusError::OutOfRange`].
    pub(crate) fn peek(&self, bus: u64, into: &mut [u8]) -> Result<(), BusError> {
        let at = self.at(bus, into.len() as u64)?;
        let pages = self.lock();
        for (page, at, part) in parts(at, into.len()) {
            pages[page].read(at, &mut into[part]);
        }
        Ok(())
    }

    /// Writes bytes by bus address, past the NIC.
    ///
    /// # Errors
    /// [`BusError::OutOfRange`].
    pub(crate) fn poke(&self, bus: u64, from: &[u8]) -> Result<(), BusError> {
        let at = self.at(bus, from.len() as u64)?;
        let mut pages = self.lock();
        for (page, at, part) in parts(at, from.len()) {
            pages[page].write(at, &from[part]);
        }
        Ok(())
    }

    /// Writes as many bytes of a pattern, which has begun `start` bytes before.
    ///
    /// # Errors
    /// [`BusError::OutOfRange`].
    pub(crate) fn fill(
        &self,
        bus: u64,
        len: u64,
        pattern: &Pattern,
        start: usize,
    ) -> Result<(), BusError> {
        let at = self.at(bus, len)?;
        let mut pages = self.lock();
        for (page, at, part) in parts(at, len as usize) {
            let mut bytes = [0; 2 * PERIOD];
            let first = &mut bytes[..part.len().min(2 * PERIOD)];
            repeat(pattern, start + part.start, first);
            if part.len() <= first.len() {
                pages[page].write(at, first);
                continue;
            }
            let run = Run {
                end: (at + part.len()) as u32,
                ..Run::first_of(first, at)
            };
            match &mut pages[page] {
                Page::Bytes(bytes) if part.len() < PAGE => {
                    run.expand(&mut bytes[at..at + part.len()]);
                }
                Page::Bytes(_) => pages[page] = Page::Runs(vec![run]),
                Page::Runs(runs) => replace(runs, (at, at + part.len()), &[run]),
            }
        }
        Ok(())
    }

    /// Bytes that the contents take.
    #[cfg(test)]
    fn taken(&self) -> usize {
        let of = |page: &Page| match page {
            Page::Runs(runs) => runs.capacity() * size_of::<Run>(),
            Page::Bytes(bytes) => bytes.len(),
        };
        self.lock().iter().map(of).sum()
    }
}

/// Pages of bytes at an offset: the number of each, the offset in it, and its part of the bytes.
fn parts(at: usize, len: usize) -> impl Iterator<Item = (usize, usize, std::ops::Range<usize>)> {
    let end = at + len;
    let pages = at / PAGE..end.div_ceil(PAGE);
    pages.map(move |page| {
        let start = at.max(page * PAGE);
        let stop = end.min((page + 1) * PAGE);
        (page, start % PAGE, start - at..stop - at)
    })
}

fn check_length(span: BusSpan, len: usize) -> Result<(), BusError> {
    match span.len == len as u64 {
        true => Ok(()),
        false => Err(BusError::OutOfRange {
            addr: span.addr.value(),
            len: len as u64,
        }),
    }
}

impl DmaMemory for RepeatingMemory {
    fn submit(&self, op: DmaOp<'_>) -> Result<Submitted, BusError> {
        match op {
            DmaOp::Read { from, into } => {
                check_length(from, into.len())?;
                self.peek(from.addr.value(), into)?;
            }
            DmaOp::Write { to, from } => {
                check_length(to, from.len())?;
                self.poke(to.addr.value(), from)?;
            }
            DmaOp::Copy { from, to } => {
                check_length(from, to.len as usize)?;
                let mut bytes = vec![0; to.len as usize];
                self.peek(from.addr.value(), &mut bytes)?;
                self.poke(to.addr.value(), &bytes)?;
            }
        }
        Ok(Submitted::Done)
    }

    fn poll(&self) -> Option<DmaId> {
        None
    }

    fn take(&self, id: DmaId, _into: &mut [u8]) {
        // Nothing is ever pending here, so no caller can hold an id.
        debug_assert!(false, "{id:?} was not answered by this memory");
    }

    fn publish(&self, completion: CompletionWrite) {
        completion.store(); // its Release orders the bytes above before it
    }

    fn is_immediate(&self) -> bool {
        true
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ringbell_gtlb::testing::{conformance, each_part, Layout, Rng};
    use ringbell_nic_abi::GpuVa;

    use super::*;

    const LEN: u64 = 2 << 20;

    #[test]
    fn it_is_a_memory_as_any_other() {
        for layout in [Layout::Contiguous, Layout::Scattered(4)] {
            conformance::check(&|| {
                let memory = Arc::new(RepeatingMemory::new(LEN));
                let table = layout.table(GpuVa(0x7e00_0000_0000), memory.bus(), LEN);
                let (a, b) = (memory.clone(), memory.clone());
                let (ta, tb) = (table.clone(), table.clone());
                conformance::Subject {
                    memory,
                    table,
                    outside: BUS_BASE + LEN,
                    peek: Box::new(move |va, into| {
                        each_part(&ta, va, into.len(), |bus, part| {
                            a.peek(bus, &mut into[part]).expect("it is mapped");
                        });
                    }),
                    poke: Box::new(move |va, from| {
                        each_part(&tb, va, from.len(), |bus, part| {
                            b.poke(bus, &from[part]).expect("it is mapped");
                        });
                    }),
                }
            });
        }
    }

    #[test]
    fn what_is_written_is_read_whether_it_repeats_or_not() {
        let pages = 3;
        let len = pages * PAGE;
        for seed in 0..30 {
            let mut rng = Rng::new(seed);
            let memory = RepeatingMemory::new(len as u64);
            let mut model = vec![0; len];
            let mut patterns = [[0; PERIOD]; 3];
            patterns[1].copy_from_slice(&rng.bytes(PERIOD));
            // It differs in one place.
            patterns[2] = patterns[1];
            patterns[2][7] ^= 1;
            for _ in 0..600 {
                let most = [40, 120, 3_000, 2 * PAGE as u64][rng.below(4) as usize];
                let n = 1 + rng.below(most) as usize;
                let at = rng.below((len - n) as u64 + 1) as usize;
                let mut bytes = vec![0; n];
                let pattern = &patterns[rng.below(3) as usize];
                // By its place, so that neighbours may be of one pattern.
                repeat(pattern, at, &mut bytes);
                let bus = BUS_BASE + at as u64;
                match rng.below(8) {
                    0 => memory.fill(bus, n as u64, pattern, at).expect("it fits"),
                    1 => {
                        bytes[n / 2] ^= 0x10;
                        memory.poke(bus, &bytes).expect("it fits");
                    }
                    2 if n < 200 => {
                        bytes = rng.bytes(n);
                        memory.poke(bus, &bytes).expect("it fits");
                    }
                    _ => memory.poke(bus, &bytes).expect("it fits"),
                }
                model[at..at + n].copy_from_slice(&bytes);
                let n = rng.below(len as u64 / 8) as usize;
                let at = rng.below((len - n) as u64) as usize;
                let mut read = vec![1; n];
                memory
                    .peek(BUS_BASE + at as u64, &mut read)
                    .expect("it fits");
                assert!(read == model[at..at + n], "seed {seed}, {n} at {at}");
            }
            let mut all = vec![1; len];
            memory.peek(BUS_BASE, &mut all).expect("it fits");
            assert!(all == model, "seed {seed}");
        }
    }

    #[test]
    fn what_repeats_takes_next_to_nothing_and_what_does_not_its_bytes() {
        let memory = RepeatingMemory::new(LEN);
        let pattern: Pattern = std::array::from_fn(|i| i as u8);
        let mut bytes = vec![0; LEN as usize];
        repeat(&pattern, 0, &mut bytes);
        // In pieces of frames, the last ones first.
        for (i, piece) in bytes.chunks(8_916).enumerate().rev() {
            memory
                .poke(BUS_BASE + 8_916 * i as u64, piece)
                .expect("it fits");
        }
        let pages = (LEN / PAGE_BYTES) as usize;
        assert!(
            memory.taken() <= pages * 4 * size_of::<Run>(),
            "{}",
            memory.taken()
        );
        let random = Rng::new(1).bytes(PAGE);
        memory.poke(BUS_BASE + 5, &random).expect("it fits");
        assert!(memory.taken() >= PAGE, "{}", memory.taken());
        memory.fill(BUS_BASE, LEN, &pattern, 0).expect("it fits");
        assert!(
            memory.taken() <= pages * 4 * size_of::<Run>(),
            "{}",
            memory.taken()
        );
        let mut read = vec![1; LEN as usize];
        memory.peek(BUS_BASE, &mut read).expect("it fits");
        assert!(read == bytes);
    }

    #[test]
    fn what_lies_outside_is_refused() {
        let memory = RepeatingMemory::new(LEN);
        let outside = [(BUS_BASE - 1, 1), (BUS_BASE + LEN - 1, 2), (u64::MAX, 1)];
        for (addr, len) in outside {
            let error = BusError::OutOfRange { addr, len };
            let mut bytes = vec![0; len as usize];
            assert_eq!(memory.peek(addr, &mut bytes), Err(error));
            assert_eq!(memory.poke(addr, &bytes), Err(error));
            assert_eq!(memory.fill(addr, len, &[0; PERIOD], 0), Err(error));
        }
    }
}
