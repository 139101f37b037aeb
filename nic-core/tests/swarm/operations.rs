//! Single operations: what is posted for each, and what it must leave behind.

use ringbell_nic_abi::{CollectiveKind as K, DataType, Descriptor, ReduceOp, WireType};
use ringbell_nic_core::types::CommId;

use super::collective_support::nic::driven::*;
use super::collective_support::Call;
use super::model;
use super::plan::{How, Op, With, OPERAND};
use super::run::{Holds, Lent, Pending, Run, TIMEOUT_US};

impl Run<'_> {
    pub(super) fn collective(
        &mut self,
        id: usize,
        members: &[usize],
        comms: &[CommId],
        (kind, root, count): (K, usize, usize),
        how: How,
    ) -> Result<(), String> {
        let (src, dst) = self.slot(id)?;
        let with = how.with;
        let dst = if how.in_place { src } else { dst };
        let ranks = members.len();
        let input = |(r, m): (usize, &usize)| {
            let len = model::blocks(kind, ranks, r == root).0 * count * 4;
            let bytes = self.source(id, *m, src, len);
            if with == With::Nothing {
                return bytes;
            }
            let small = model::small(&bytes);
            if let Some(h) = &self.w.hosts[*m] {
                h.poke(src, &small);
            }
            small
        };
        let sources: Vec<Vec<u8>> = members.iter().enumerate().map(input).collect();
        let dtype = match with {
            With::Nothing => DataType::U32,
            _ => DataType::F32,
        };
        let mut call = Call::new(kind, count as u64)
            .of(dtype, ReduceOp::Sum)
            .algo(how.algo)
            .root(root as u32)
            .at(src, dst)
            .within(TIMEOUT_US);
        if with == With::NarrowWire {
            call = call.wire(WireType::Bf16);
        }
        for (r, &m) in members.iter().enumerate() {
            if !self.is_alive(m) {
                continue;
            }
            let want = model::result(kind, &sources, root, r, count * 4, with);
            let p = Pending {
                in_group: true,
                reads: vec![Lent {
                    on: m,
                    at: src,
                    len: if how.in_place { 0 } else { sources[r].len() },
                }],
                holds: vec![Holds {
                    on: m,
                    at: dst,
                    want,
                }],
                ..Run::pending(id, m, members)
            };
            self.post(m, &call.descriptor(comms[r]), p)?;
        }
        Ok(())
    }

    pub(super) fn message(
        &mut self,
        id: usize,
        from: usize,
        to: usize,
        len: usize,
    ) -> Result<(), String> {
        let (src, dst) = self.slot(id)?;
        let want = self.source(id, from, src, len);
        let all: Vec<usize> = (0..self.plan.ranks).collect();
        let call = |kind| {
            Call::new(kind, len as u64)
                .of(DataType::U8, ReduceOp::Sum)
                .tag(id as u32)
                .at(src, dst)
                .within(TIMEOUT_US)
        };
        for (rank, kind, peer) in [(from, K::Send, to), (to, K::Recv, from)] {
            if !self.is_alive(rank) {
                continue;
            }
            let mut p = Pending {
                in_group: true,
                ..Run::pending(id, rank, &all)
            };
            if kind == K::Send {
                p.reads = vec![Lent {
                    on: from,
                    at: src,
                    len,
                }];
            } else {
                p.bytes = Some(len as u64);
                let want = want.clone();
                p.holds = vec![Holds {
                    on: to,
                    at: dst,
                    want,
                }];
            }
            let mut call = call(kind).root(peer as u32);
            if kind == K::Recv {
                call = call.at(dst, dst);
            }
            let d = call.descriptor(self.w.comms[rank]);
            self.post(rank, &d, p)?;
        }
        Ok(())
    }

    pub(super) fn of_session(&mut self, id: usize, op: &Op) -> Result<(), String> {
        let Some((from, to)) = op.pair() else {
            return Ok(());
        };
        let Some((here, there)) = self.session(from, to) else {
            return Ok(());
        };
        let (src, dst) = self.slot(id)?;
        let key = self.w.host(to).rkey();
        let pending = |rank| Run::pending(id, rank, &[from, to]);
        let one = |d: Descriptor| within(d, TIMEOUT_US);
        match *op {
            Op::Stream {
                ref sends,
                ref recvs,
                ..
            } => {
                let len: u32 = sends.iter().sum();
                let bytes = self.source(id, from, src, len as usize);
                let mut at = 0;
                for &n in sends {
                    let d = one(send(here, src + at, n));
                    let p = Pending {
                        reads: vec![Lent {
                            on: from,
                            at: src + at,
                            len: n as usize,
                        }],
                        ..pending(from)
                    };
                    self.post(from, &d, p)?;
                    at += u64::from(n);
                }
                at = 0;
                for &n in recvs {
                    let want = bytes[at as usize..][..n as usize].to_vec();
                    let p = Pending {
                        bytes: Some(n.into()),
                        holds: vec![Holds {
                            on: to,
                            at: dst + at,
                            want,
                        }],
                        ..pending(to)
                    };
                    self.post(to, &one(recv(there, dst + at, n)), p)?;
                    at += u64::from(n);
                }
                Ok(())
            }
            Op::Put { len, signal, .. } => {
                let want = self.source(id, from, src, len as usize);
                let word = dst + OPERAND as u64 - 8;
                self.w.host(to).poke(word, &[0; 8]);
                let mut holds = vec![Holds {
                    on: to,
                    at: dst,
                    want,
                }];
                let mut d = one(put(here, key, src, dst, len));
                if signal {
                    let value = id as u64 + 1;
                    d = signalled(d, (word / 8) as u32, value);
                    let want = value.to_le_bytes().to_vec();
                    holds.push(Holds {
                        on: to,
                        at: word,
                        want,
                    });
                }
                let p = Pending {
                    holds,
                    reads: vec![Lent {
                        on: from,
                        at: src,
                        len: len as usize,
                    }],
                    ..pending(from)
                };
                self.post(from, &d, p).map(drop)
            }
            Op::Get { len, .. } => {
                let want = self.source(id, to, src, len as usize);
                let p = Pending {
                    holds: vec![Holds {
                        on: from,
                        at: dst,
                        want,
                    }],
                    reads: vec![Lent {
                        on: to,
                        at: src,
                        len: len as usize,
                    }],
                    ..pending(from)
                };
                self.post(from, &one(get(here, key, src, dst, len)), p)
                    .map(drop)
            }
            Op::Add { .. } | Op::Swap { .. } => {
                let word = self.source(id, to, dst, 8);
                let old = u64::from_le_bytes(word.try_into().expect("8 bytes"));
                let (d, new) = match *op {
                    Op::Add { addend, .. } => {
                        let d = fetch_add(here, key, dst, addend);
                        (d, old.wrapping_add(addend))
                    }
                    Op::Swap { finds: true, .. } => (compare_swap(here, key, dst, old, !old), !old),
                    _ => (compare_swap(here, key, dst, !old, 1), old),
                };
                let p = Pending {
                    detail: Some(old),
                    holds: vec![Holds {
                        on: to,
                        at: dst,
                        want: new.to_le_bytes().to_vec(),
                    }],
                    ..pending(from)
                };
                self.post(from, &one(d), p).map(drop)
            }
            _ => Ok(()),
        }
    }
}
