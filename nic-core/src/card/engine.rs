//! The engine of a card on the path of received payloads: its place, and what it counts for an
//! engine of the NIC.

use ringbell_nic_abi::bar::Reg;
use ringbell_nic_abi::engine::{
    ENGINE_CRC32C, ENGINE_HLL14, ENGINE_HLL16, ENGINE_OFF, ENGINE_RESULT,
};
use ringbell_onc_engines::stream::Hardware;

use super::shared::EngineUse;
use super::{Counted, Shared, SharedCard};
use crate::engine::{self, Counter};

/// Most cycles until a result has come: HyperLogLog's registers are cleared and then read, or the
/// engine is cut off.
const PATIENCE: u64 = 1 << 18;

/// The register's value that attaches an engine.
fn command(spec: Hardware) -> Option<u32> {
    match spec {
        Hardware::Hll { precision: 14 } => Some(ENGINE_HLL14),
        Hardware::Hll { precision: 16 } => Some(ENGINE_HLL16),
        Hardware::Checksum => Some(ENGINE_CRC32C),
        _ => None,
    }
}

impl Shared {
    /// Puts the engine on the path of a connection. `false`: it cannot do that, or is in use.
    fn attach(&mut self, conn: u16, spec: Hardware) -> bool {
        let Some(command) = command(spec).filter(|_| !self.engine.taken) else {
            return false;
        };
        // What was given before is not for it.
        self.settle();
        let done = self.card.bar_write(Reg::EngineConn.offset(), conn.into())
            && self.card.bar_write(Reg::EngineCommand.offset(), command);
        if done {
            self.engine = EngineUse {
                taken: true,
                conn: Some(conn),
                ..EngineUse::default()
            };
            self.counts.engines += 1;
        }
        done
    }

    /// Whether the engine sees the received bytes of a connection.
    pub(crate) fn counts_for(&self, conn: u16) -> bool {
        self.engine.conn == Some(conn)
    }

    /// Reads the engine out, which clears it.
    fn read_out(&mut self) -> Option<Counted> {
        self.settle();
        if !self
            .card
            .bar_write(Reg::EngineCommand.offset(), ENGINE_RESULT)
        {
            return None;
        }
        for _ in 0..PATIENCE {
            self.card.cycle();
            self.sort();
            if self.engine.result.is_some() {
                return self.engine.result.take();
            }
        }
        tracing::error!("the engine of the card gives no result");
        None
    }

    /// A connection ends: its bytes were counted to here.
    pub(super) fn leave_engine(&mut self, conn: u16) {
        if self.counts_for(conn) {
            self.engine.left = self.read_out();
            self.engine.conn = None;
            self.card.bar_write(Reg::EngineCommand.offset(), ENGINE_OFF);
        }
    }
}

/// The card's engine in the place of an engine of the NIC.
struct InUse(SharedCard);

impl Counter for InUse {
    fn take(&mut self) -> Option<engine::Tally> {
        let mut card = self.0.lock();
        let counted = match card.engine.conn {
            Some(_) => card.read_out()?,
            // Its connection has ended: this is the last, or there was one before.
            None => match card.engine.left.take() {
                Some(counted) => counted,
                None => return Some(engine::Tally::default()),
            },
        };
        (!counted.failed).then_some(engine::Tally {
            result: counted.result,
            rest: counted.rest,
        })
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let mut card = self.0.lock();
        if card.engine.conn.is_some() {
            card.card.bar_write(Reg::EngineCommand.offset(), ENGINE_OFF);
        }
        card.engine = EngineUse::default();
    }
}

impl SharedCard {
    /// Puts the card's engine on the path of a connection. `None`: it cannot do that, or is in use.
    pub(crate) fn take_engine(&self, conn: u16, spec: Hardware) -> Option<Box<dyn Counter>> {
        let attached = self.lock().attach(conn, spec);
        attached.then(|| -> Box<dyn Counter> { Box::new(InUse(self.clone())) })
    }
}
