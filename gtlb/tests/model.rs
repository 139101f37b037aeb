//! Regions, pins and deregistration against a model that is too simple to be wrong.

use proptest::prelude::*;
use ringbell_gtlb::*;
use ringbell_nic_abi::{GpuVa, Lkey, PdId};

const BASE: u64 = 1 << 40;
const LEN: u64 = 6 << 20;
const KIB64: u64 = 64 << 10;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Life {
    Live,
    Freeing,
    Quarantined,
    Gone,
}

#[derive(Debug, Clone)]
struct Model {
    lkey: Lkey,
    pd: usize,
    start: u64,
    end: u64,
    write: bool,
    life: Life,
    pins: Vec<Pinned>,
}

#[derive(Debug, Clone, Copy)]
struct Pinned {
    start: u64,
    end: u64,
}

#[derive(Debug, Clone, Copy)]
enum Step {
    Register {
        pd: usize,
        start: u64,
        len: u64,
        write: bool,
    },
    PinByAddress {
        pd: usize,
        start: u64,
        len: u64,
        write: bool,
    },
    PinByKey {
        pick: usize,
        pd: usize,
        start: u64,
        len: u64,
        write: bool,
    },
    Span {
        pick: usize,
        at: u64,
    },
    Unpin {
        pick: usize,
    },
    Begin {
        pick: usize,
    },
    Finish {
        pick: usize,
    },
    Quarantine {
        pick: usize,
    },
}

fn step() -> impl Strategy<Value = Step> {
    // Few places and lengths, so that regions nest, overlap, touch and are hit at their edges.
    let place = (0..24u64, 0..3u64).prop_map(|(i, j)| i * LEN / 24 + [0, 1, KIB64 - 1][j as usize]);
    let len = prop_oneof![Just(0u64), Just(1), Just(KIB64), 1..LEN, Just(u64::MAX)];
    let range = (place, len);
    prop_oneof![
        4 => (0..2usize, range.clone(), any::<bool>()).prop_map(|(pd, (start, len), write)| Step::Register { pd, start, len, write }),
        6 => (0..2usize, range.clone(), any::<bool>()).prop_map(|(pd, (start, len), write)| Step::PinByAddress { pd, start, len, write }),
        4 => (any::<usize>(), 0..2usize, range, any::<bool>()).prop_map(|(pick, pd, (start, len), write)| Step::PinByKey { pick, pd, start, len, write }),
        4 => (any::<usize>(), 0..LEN).prop_map(|(pick, at)| Step::Span { pick, at }),
        4 => any::<usize>().prop_map(|pick| Step::Unpin { pick }),
        2 => any::<usize>().prop_map(|pick| Step::Begin { pick }),
        2 => any::<usize>().prop_map(|pick| Step::Finish { pick }),
        1 => any::<usize>().prop_map(|pick| Step::Quarantine { pick }),
    ]
}

/// Bus page of a virtual page: the first and third group scattered, the second contiguous.
fn frame(page: u64) -> u64 {
    let within = page % 32;
    let frame = if page / 32 == 1 { within } else { 31 - within };
    (1 << 30) + (page / 32 * 32 + frame) * KIB64
}

fn usable(r: &Model, pd: usize, start: u64, end: u64, write: bool) -> bool {
    r.life == Life::Live && r.pd == pd && r.start <= start && end <= r.end && (r.write || !write)
}

struct World {
    mmu: Mmu,
    pds: [PdId; 2],
    regions: Vec<Model>,
}

impl World {
    fn new(refill: bool) -> World {
        let config = GtlbConfig {
            main_entries: 4,
            complementary_entries: 64,
        };
        let mut mmu = Mmu::new(MmuConfig {
            instances: vec![config],
            refill,
        })
        .unwrap();
        let pages = (0..LEN / KIB64).map(frame).collect();
        mmu.map(&PageTable {
            base: GpuVa(BASE),
            pages,
        })
        .unwrap();
        let pds = [mmu.alloc_pd().unwrap(), mmu.alloc_pd().unwrap()];
        World {
            mmu,
            pds,
            regions: Vec::new(),
        }
    }

    fn apply(&mut self, step: Step) -> Result<(), TestCaseError> {
        match step {
            Step::Register {
                pd,
                start,
                len,
                write,
            } => {
                let access = if write {
                    Access::LOCAL
                } else {
                    Access::LOCAL_READ
                };
                let got = self
                    .mmu
                    .register(self.pds[pd], GpuVa(BASE + start), len, access);
                let fits = len > 0 && start.checked_add(len).is_some_and(|end| end <= LEN);
                prop_assert_eq!(got.is_ok(), fits, "{:?}", got);
                if let Ok(mr) = got {
                    prop_assert!(
                        self.regions.iter().all(|r| r.lkey != mr.lkey),
                        "a key came back"
                    );
                    self.regions.push(Model {
                        lkey: mr.lkey,
                        pd,
                        start,
                        end: start + len,
                        write,
                        life: Life::Live,
                        pins: vec![],
                    });
                }
            }
            Step::PinByAddress {
                pd,
                start,
                len,
                write,
            } => {
                let got = self.pin(pd, Lkey(0), start, len, write);
                let end = start.saturating_add(len);
                let able = self
                    .regions
                    .iter()
                    .any(|r| usable(r, pd, start, end, write));
                prop_assert_eq!(got.is_ok(), able, "{:?}", got);
                if let Ok(pin) = got {
                    let r = self
                        .regions
                        .iter_mut()
                        .find(|r| r.lkey.0 == pin.region)
                        .unwrap();
                    prop_assert!(usable(r, pd, start, end, write), "{:?}", r);
                    r.pins.push(Pinned { start, end });
                }
            }
            Step::PinByKey {
                pick,
                pd,
                start,
                len,
                write,
            } => {
                let Some(i) = self.pick(pick) else {
                    return Ok(());
                };
                let r = self.regions[i].clone();
                let got = self.pin(pd, r.lkey, start, len, write);
                let end = start.saturating_add(len);
                let va = GpuVa(BASE + start);
                let expected = if r.pd != pd {
                    Err(Fault::BadKey { key: r.lkey.0 })
                } else if r.life != Life::Live {
                    Err(Fault::RegionFreed { va })
                } else if start < r.start || end > r.end {
                    Err(Fault::OutOfBounds {
                        va,
                        end: GpuVa(BASE + r.end),
                    })
                } else if write && !r.write {
                    Err(Fault::AccessDenied { va })
                } else {
                    self.regions[i].pins.push(Pinned { start, end });
                    Ok(r.lkey.0)
                };
                prop_assert_eq!(got.map(|pin| pin.region), expected);
            }
            Step::Span { pick, at } => {
                let Some(i) = self.pick(pick) else {
                    return Ok(());
                };
                let r = &self.regions[i];
                let Some(pin) = r.pins.first() else {
                    return Ok(());
                };
                if pin.start == pin.end {
                    return Ok(());
                }
                let at = pin.start + at % (pin.end - pin.start);
                let got = self.mmu.span(r.lkey.0, GpuVa(BASE + at), pin.end - at);
                if r.life == Life::Quarantined {
                    prop_assert_eq!(
                        got,
                        Err(Fault::RegionFreed {
                            va: GpuVa(BASE + at)
                        })
                    );
                } else {
                    // A pinned region translates until its last operation has retired.
                    let span = got.unwrap();
                    prop_assert_eq!(span.addr.value(), frame(at / KIB64) + at % KIB64);
                    prop_assert!(span.len >= 1 && at + span.len <= pin.end);
                }
            }
            Step::Unpin { pick } => {
                let Some(i) = self.pick(pick) else {
                    return Ok(());
                };
                if self.regions[i].pins.pop().is_some() {
                    self.mmu.unpin(Pin {
                        region: self.regions[i].lkey.0,
                    });
                }
            }
            Step::Begin { pick } => {
                let Some(i) = self.pick(pick) else {
                    return Ok(());
                };
                let got = self.mmu.begin_deregister(self.regions[i].lkey);
                prop_assert_eq!(got.is_ok(), self.regions[i].life == Life::Live);
                if got.is_ok() {
                    self.regions[i].life = Life::Freeing;
                }
            }
            Step::Finish { pick } => {
                let Some(i) = self.pick(pick) else {
                    return Ok(());
                };
                let r = &mut self.regions[i];
                let lkey = r.lkey;
                let expected = match r.life {
                    Life::Gone => Err(DeregisterError::BadKey { lkey }),
                    Life::Live => Err(DeregisterError::NotBegun { lkey }),
                    _ if !r.pins.is_empty() => Err(DeregisterError::Pinned {
                        lkey,
                        pins: r.pins.len() as u32,
                    }),
                    _ => Ok(()),
                };
                if expected.is_ok() {
                    r.life = Life::Gone;
                }
                prop_assert_eq!(self.mmu.finish_deregister(lkey), expected);
            }
            Step::Quarantine { pick } => {
                let Some(i) = self.pick(pick) else {
                    return Ok(());
                };
                let r = &mut self.regions[i];
                let got = self.mmu.quarantine(r.lkey);
                prop_assert_eq!(got.is_ok(), !matches!(r.life, Life::Live | Life::Gone));
                if got.is_ok() {
                    r.life = Life::Quarantined;
                }
            }
        }
        for r in &self.regions {
            prop_assert_eq!(self.mmu.pins_of(r.lkey), r.pins.len() as u32);
        }
        // Memory under any region cannot go away.
        let free = self.regions.iter().all(|r| r.life == Life::Gone);
        prop_assert!(free || self.mmu.unmap(GpuVa(BASE), LEN).is_err());
        Ok(())
    }

    fn pin(
        &mut self,
        pd: usize,
        lkey: Lkey,
        start: u64,
        len: u64,
        write: bool,
    ) -> Result<Pin, Fault> {
        let need = if write { Need::Write } else { Need::Read };
        // A length that wraps the address space must not wrap the check.
        self.mmu
            .pin(self.pds[pd], lkey, GpuVa(BASE + start), len, need)
    }

    fn pick(&self, pick: usize) -> Option<usize> {
        pick.checked_rem(self.regions.len())
    }

    fn tear_down(mut self) -> Result<(), TestCaseError> {
        for r in &mut self.regions {
            for _ in r.pins.drain(..) {
                self.mmu.unpin(Pin { region: r.lkey.0 });
            }
            if r.life == Life::Live {
                self.mmu.begin_deregister(r.lkey).unwrap();
            }
            if r.life != Life::Gone {
                self.mmu.finish_deregister(r.lkey).unwrap();
            }
        }
        for pd in self.pds {
            self.mmu.free_pd(pd).unwrap();
        }
        self.mmu.unmap(GpuVa(BASE), LEN).unwrap();
        Ok(())
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, rng_seed: proptest::test_runner::RngSeed::Fixed(11), ..ProptestConfig::default() })]

    #[test]
    fn regions_follow_the_model(refill in any::<bool>(), steps in prop::collection::vec(step(), 1..80)) {
        let mut world = World::new(refill);
        for step in steps {
            world.apply(step)?;
        }
        world.tear_down()?;
    }
}

#[test]
fn stale_keys_stay_stale_while_slots_are_used_again() {
    let mut world = World::new(true);
    let mut seen = std::collections::HashSet::new();
    let mut remote = std::collections::HashSet::new();
    for _ in 0..5_000 {
        let mr = world
            .mmu
            .register(world.pds[0], GpuVa(BASE), 8, Access::LOCAL)
            .unwrap();
        assert!(seen.insert(mr.lkey), "{} came back", mr.lkey);
        assert!(remote.insert(mr.rkey), "{} came back", mr.rkey);
        world.mmu.begin_deregister(mr.lkey).unwrap();
        world.mmu.finish_deregister(mr.lkey).unwrap();
    }
    for lkey in seen {
        let got = world
            .mmu
            .pin(world.pds[0], lkey, GpuVa(BASE), 8, Need::Read);
        assert!(matches!(
            got,
            Err(Fault::BadKey { .. } | Fault::RegionFreed { .. })
        ));
    }
}
