//! A rank's collectives: those that its NIC has, and what must come of them.

use std::collections::HashMap;
use std::time::Duration;

use ringbell_nic_abi::{Algorithm, CollectiveKind, Status};

use super::contents::{Ledger, Over};
use super::room::Room;
use crate::data::{source, Data};
use crate::goal::ELEMENT;
use crate::node::{Memory, Node};
use crate::Failure;

/// As long as a collective may wait for other ranks: longer than a schedule may stand still.
const TIMEOUT: Duration = Duration::from_secs(3600);

/// What a collective of this many bytes does.
///
/// # Errors
/// Less than an element.
pub(super) fn data_of(kind: CollectiveKind, ranks: u64, bytes: u64) -> Result<Data, Failure> {
    let data = Data::of(kind, ranks, bytes);
    match data.count == 0 && kind != CollectiveKind::Barrier {
        true => Err(Failure::Small { bytes }),
        false => Ok(Data {
            count: if kind == CollectiveKind::Barrier {
                0
            } else {
                data.count
            },
            ..data
        }),
    }
}

/// One that the NIC has.
#[derive(Debug)]
struct Posted {
    op: u32,
    ticket: u32,
    data: Data,
    /// Where its result comes.
    at: u64,
}

/// The collectives of a rank, which has an operand for all of them.
#[derive(Debug)]
pub(super) struct Collectives {
    rank: u64,
    ranks: u64,
    /// Where the operand begins.
    operand: u64,
    posted: Vec<Posted>,
    /// By operation: how many were posted before it.
    numbers: HashMap<u32, usize>,
}

impl Collectives {
    /// None yet; `operand` are begin and bytes.
    pub(super) fn new(
        (rank, ranks): (u64, u64),
        memory: &Memory,
        operand: (u64, u64),
    ) -> Collectives {
        memory.write(operand.0, &source(rank, operand.1 / ELEMENT));
        Collectives {
            rank,
            ranks,
            operand: operand.0,
            posted: Vec::new(),
            numbers: HashMap::new(),
        }
    }

    /// How many the NIC has that have not ended.
    pub(super) fn under_way(&self) -> usize {
        self.posted.len()
    }

    /// Their operations.
    pub(super) fn open(&self) -> impl Iterator<Item = u32> + '_ {
        self.posted.iter().map(|p| p.op)
    }

    /// How many were posted, ever.
    pub(super) fn begun(&self) -> usize {
        self.numbers.len()
    }

    /// How many were posted before an operation, if that was.
    pub(super) fn number(&self, op: u32) -> Option<usize> {
        self.numbers.get(&op).copied()
    }

    /// Gives the NIC one. `false`: there is no room, in its queue or for the result.
    pub(super) fn post(
        &mut self,
        node: &Node,
        (memory, room): (&Memory, &mut Room),
        op: u32,
        (kind, bytes): (CollectiveKind, u64),
    ) -> bool {
        let Ok(data) = data_of(kind, self.ranks, bytes) else {
            return false;
        };
        let [_, result] = data.operands(self.rank);
        let Some(at) = room.take(result) else {
            return false;
        };
        memory.write(at, &vec![0xff; result as usize]);
        let operands = [Memory::va(self.operand), Memory::va(at)];
        let what = (kind, Algorithm::Auto);
        let Some(ticket) = node.post(what, data.count, operands, TIMEOUT) else {
            room.give_back(at, result);
            return false;
        };
        self.numbers.insert(op, self.numbers.len());
        let posted = Posted {
            op,
            ticket,
            data,
            at,
        };
        self.posted.push(posted);
        true
    }

    /// Takes what has ended, and compares the results.
    ///
    /// # Errors
    /// How the first has ended that has not ended well.
    pub(super) fn advance(
        &mut self,
        node: &Node,
        (memory, room): (&Memory, &mut Room),
        ledger: &mut Ledger,
    ) -> Result<Vec<u32>, Over> {
        let (mut ended, mut failed) = (Vec::new(), None);
        self.posted.retain(|p| {
            let Some(done) = node.queue.poll(p.ticket) else {
                return true;
            };
            if done.status != Status::Ok {
                failed.get_or_insert((done.status, done.detail));
                return false;
            }
            let [_, bytes] = p.data.operands(self.rank);
            let wrong = p
                .data
                .wanted()
                .wrong(self.rank, 0, &memory.read(p.at, bytes));
            ledger.reduced(wrong * ELEMENT);
            room.give_back(p.at, bytes);
            ended.push(p.op);
            false
        });
        match failed {
            Some(over) => Err(over),
            None => Ok(ended),
        }
    }
}
