//! Engines on the path (FpgaNIC §3.5): the fields of an `ENGINE_ATTACH` descriptor.
//!
//! An engine is on the path of one stream, or taps a queue (the bytes that its descriptors move) or
//! a communicator (the bytes of its operations; ACCL+ §4, unary plug-ins). `session` of the
//! descriptor is the session, the number of the queue, or the communicator.

use crate::{bit_fields, coded_enum};

/// `ENGINE_COMMAND`: no engine is on the path of received payloads.
pub const ENGINE_OFF: u32 = 0;
/// `ENGINE_COMMAND`: HyperLogLog of 32-bit items, hash Mix, 2^14 registers.
pub const ENGINE_HLL14: u32 = 1;
/// `ENGINE_COMMAND`: the same with 2^16 registers.
pub const ENGINE_HLL16: u32 = 2;
/// `ENGINE_COMMAND`: CRC-32C.
pub const ENGINE_CRC32C: u32 = 3;
/// `ENGINE_COMMAND`: gives the result, and clears the engine.
pub const ENGINE_RESULT: u32 = 4;

coded_enum! {
    /// What an engine is attached to.
    pub enum EngineTarget: u8 ["ENGINE_ON_"] {
        /// One stream: `session` is an established session.
        Stream = 0 => "STREAM",
        /// The bytes that the descriptors of queue number `session` receive or send, on any stream.
        /// Taps only.
        Queue = 1 => "QUEUE",
        /// The sources and results of the operations of communicator `session`. Taps only.
        Communicator = 2 => "COMMUNICATOR",
    }
}

bit_fields! { ATTACH_FIELDS:
    /// Kind that the host has registered; 0: share the engine whose id is `operand`.
    A_KIND = word 4 [0 +: 16] => "ENGINE_KIND";
    /// 0: bytes received, or results of a communicator's operations; 1: bytes sent, or their
    /// sources.
    A_SENDING = word 4 [16 +: 1] => "ENGINE_SENDING";
    /// What the engine is attached to.
    A_TARGET = word 4 [17 +: 2] => "ENGINE_TARGET";
    /// Each stream of a queue, or peer of a communicator, gets an engine of its own; the kind must
    /// not be 0.
    A_APART = word 4 [19 +: 1] => "ENGINE_APART";
    /// Of a communicator: the messages between ranks instead of sources and results.
    A_WIRE = word 4 [20 +: 1] => "ENGINE_WIRE";
    /// Bytes of an item that streams with a common state do not mix; 0: no such items.
    A_ITEM = word 4 [24 +: 8] => "ENGINE_ITEM";
}

/// The fields in the `imm` of an `ENGINE_ATTACH`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct EngineSpec {
    /// A kind of the host's; 0: an existing engine.
    pub kind: u16,
    /// Bytes sent, instead of bytes received.
    pub sending: bool,
    /// What it is attached to.
    pub target: EngineTarget,
    /// A state for each stream or peer.
    pub apart: bool,
    /// Messages between ranks.
    pub wire: bool,
    /// Bytes of an item; 0 and 1: no items.
    pub item: u8,
}

impl EngineSpec {
    /// A kind on one stream, for what it receives.
    pub const fn new(kind: u16) -> EngineSpec {
        EngineSpec {
            kind,
            sending: false,
            target: EngineTarget::Stream,
            apart: false,
            wire: false,
            item: 0,
        }
    }

    /// The descriptor's `imm`.
    pub const fn encode(&self) -> u32 {
        let imm = A_KIND.put(self.kind as u64)
            | A_SENDING.put(self.sending as u64)
            | A_TARGET.put(self.target as u64)
            | A_APART.put(self.apart as u64)
            | A_WIRE.put(self.wire as u64)
            | A_ITEM.put(self.item as u64);
        imm as u32
    }

    /// Decodes `imm`; `None` for what cannot be.
    pub const fn decode(imm: u32) -> Option<EngineSpec> {
        let i = imm as u64;
        let Some(target) = EngineTarget::from_code(A_TARGET.of(i) as u8) else {
            return None;
        };
        let spec = EngineSpec {
            kind: A_KIND.of(i) as u16,
            sending: A_SENDING.of(i) != 0,
            target,
            apart: A_APART.of(i) != 0,
            wire: A_WIRE.of(i) != 0,
            item: A_ITEM.of(i) as u8,
        };
        let stream = matches!(target, EngineTarget::Stream);
        let communicator = matches!(target, EngineTarget::Communicator);
        // Bits 21 to 23 mean nothing yet, and there is only one source and one result.
        let apart = spec.apart && (stream || spec.kind == 0 || (communicator && !spec.wire));
        if spec.encode() != imm || apart || (spec.wire && !communicator) {
            return None;
        }
        Some(spec)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spec_survives_the_descriptor_and_invalid_ones_are_refused() {
        let queue = EngineSpec {
            target: EngineTarget::Queue,
            sending: true,
            apart: true,
            item: 16,
            ..EngineSpec::new(65_535)
        };
        let wire = EngineSpec {
            target: EngineTarget::Communicator,
            wire: true,
            ..EngineSpec::new(0)
        };
        for spec in [EngineSpec::new(7), queue, wire] {
            assert_eq!(EngineSpec::decode(spec.encode()), Some(spec));
        }
        let bad = [
            EngineSpec { kind: 0, ..queue },
            EngineSpec {
                target: EngineTarget::Stream,
                ..queue
            },
            EngineSpec {
                target: EngineTarget::Queue,
                ..wire
            },
        ];
        for spec in bad {
            assert_eq!(EngineSpec::decode(spec.encode()), None, "{spec:?}");
        }
        assert_eq!(EngineSpec::decode(3 << 17), None);
        assert_eq!(EngineSpec::decode(1 << 22), None);
    }
}
