//! What every file of the contract has: its tables in their order, and doc comments of `nic-abi` as
//! text.

use ringbell_nic_abi::describe::{BitField, Const, Struct};
use ringbell_nic_abi::{
    collective, completion, constants, descriptor, engine, one_sided, queue, roce, Algorithm,
    BlockHeader, BlockKind, CollectiveKind, DataType, EngineTarget, Event, EventKind, Flags,
    NakCode, Opcode, ReduceOp, RoceOpcode, Status, WireType,
};

/// Codes: a title, the rows, and the name and bits of the enumeration in SystemVerilog, if they are
/// one.
type Codes = (&'static str, &'static [Const], Option<(&'static str, u32)>);

pub(super) const CODES: [Codes; 15] = [
    ("Constants", constants::TABLE, None),
    ("Operation codes", Opcode::TABLE, Some(("opcode_e", 8))),
    ("Flags of a descriptor", Flags::TABLE, None),
    ("Completion status", Status::TABLE, Some(("status_e", 8))),
    (
        "Kinds of events",
        EventKind::TABLE,
        Some(("event_kind_e", 32)),
    ),
    (
        "Collective operations",
        CollectiveKind::TABLE,
        Some(("collective_e", 8)),
    ),
    (
        "What an engine is attached to",
        EngineTarget::TABLE,
        Some(("engine_target_e", 2)),
    ),
    ("Element types", DataType::TABLE, Some(("dtype_e", 8))),
    ("Reductions", ReduceOp::TABLE, Some(("redop_e", 8))),
    ("Algorithms", Algorithm::TABLE, Some(("algorithm_e", 8))),
    (
        "Types on the wire",
        WireType::TABLE,
        Some(("wire_type_e", 8)),
    ),
    ("RoCEv2", roce::TABLE, None),
    (
        "RoCEv2 operations",
        RoceOpcode::TABLE,
        Some(("roce_opcode_e", 8)),
    ),
    (
        "RoCEv2 reasons of a refusal",
        NakCode::TABLE,
        Some(("nak_code_e", 5)),
    ),
    (
        "Kinds of blocks of the BAR",
        BlockKind::TABLE,
        Some(("block_kind_e", 32)),
    ),
];

/// Fields of 64-bit words.
pub(super) const FIELDS: [(&str, &[BitField]); 5] = [
    ("Work queue entry", descriptor::DESCRIPTOR_FIELDS),
    ("Collective descriptor", collective::SPEC_FIELDS),
    ("One-sided descriptor", one_sided::ONE_SIDED_FIELDS),
    ("ENGINE_ATTACH descriptor", engine::ATTACH_FIELDS),
    ("Completion line", completion::COMPLETION_FIELDS),
];

pub(super) const STRUCTURES: [(&str, Struct); 3] = [
    ("Queue handle", queue::QueueHandle::LAYOUT),
    ("Event", Event::LAYOUT),
    ("Block header", BlockHeader::LAYOUT),
];

/// A doc comment as one line: rows carry the comment's lines with their leading spaces.
pub(super) fn one_line(doc: &str) -> String {
    doc.split_whitespace().collect::<Vec<_>>().join(" ")
}
