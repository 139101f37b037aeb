//! The loose constants of the contract as one table, for the generators.
//!
//! Operation codes, status codes, event kinds, flags, bit fields and registers have tables of their
//! own beside their definition. Each row here is taken from the constant that Rust uses.

use crate::describe::Const;
use crate::{
    bar, block, collective, completion, descriptor, engine, event, kernel_stream, translation,
    Status,
};

const fn row(name: &'static str, value: u64, doc: &'static str) -> Const {
    Const { name, value, doc }
}

/// Rows for the generators.
pub const TABLE: &[Const] = &[
    row(
        "ABI_VERSION",
        crate::ABI_VERSION as u64,
        "Version of this contract; compare with register ABI_VERSION first.",
    ),
    row(
        "MAGIC",
        bar::MAGIC as u64,
        "Value of register MAGIC: \"RBEL\".",
    ),
    row(
        "CONTROL_BYTES",
        bar::CONTROL_BYTES as u64,
        "Bytes of the control window.",
    ),
    row(
        "STATUS_BASE",
        bar::STATUS_BASE as u64,
        "Byte offset of the first status register.",
    ),
    row(
        "DOORBELL_BASE",
        bar::DOORBELL_BASE as u64,
        "Byte offset of the doorbell of queue 0.",
    ),
    row(
        "DOORBELL_STRIDE",
        bar::DOORBELL_STRIDE as u64,
        "Bytes between two queue doorbells.",
    ),
    row(
        "MAX_QUEUES",
        bar::MAX_QUEUES as u64,
        "Most queues of one NIC.",
    ),
    row(
        "BAR_BYTES",
        bar::BAR_BYTES as u64,
        "Bytes of the whole BAR.",
    ),
    row(
        "HEADERS_BASE",
        block::HEADERS_BASE as u64,
        "Byte offset of the first block header of a NIC of this contract.",
    ),
    row(
        "HEADER_STRIDE",
        block::HEADER_STRIDE as u64,
        "Bytes between two block headers of it.",
    ),
    row(
        "BLOCK_HARDWARE",
        block::BLOCK_HARDWARE as u64,
        "Flag of a block header: hardware does the block's work; else software does.",
    ),
    row(
        "BLOCK_KERNELS",
        block::BLOCK_KERNELS as u64,
        "Flag of a block header: kernels may write its control registers or doorbells.",
    ),
    row(
        "PAGE_SHIFT",
        translation::PAGE_SHIFT as u64,
        "log2 of the bytes of a GPU page, a complementary entry of the GTLB.",
    ),
    row(
        "LARGE_PAGE_SHIFT",
        translation::LARGE_PAGE_SHIFT as u64,
        "log2 of the bytes of a main entry of the GTLB.",
    ),
    row(
        "GTLB_WRITE_LARGE",
        translation::GTLB_WRITE_LARGE as u64,
        "GTLB_COMMAND: writes a main entry of 2 MiB.",
    ),
    row(
        "GTLB_WRITE_PAGE",
        translation::GTLB_WRITE_PAGE as u64,
        "GTLB_COMMAND: writes a complementary entry of 64 KiB.",
    ),
    row(
        "GTLB_WRITE_POINTER",
        translation::GTLB_WRITE_POINTER as u64,
        "GTLB_COMMAND: writes a main entry that points to 32 complementary entries.",
    ),
    row(
        "GTLB_INVALIDATE",
        translation::GTLB_INVALIDATE as u64,
        "GTLB_COMMAND: invalidates a main entry.",
    ),
    row(
        "ENGINE_OFF",
        engine::ENGINE_OFF as u64,
        "ENGINE_COMMAND: no engine is on the path.",
    ),
    row(
        "ENGINE_HLL14",
        engine::ENGINE_HLL14 as u64,
        "ENGINE_COMMAND: HyperLogLog of 32-bit items, hash Mix, 2^14 registers.",
    ),
    row(
        "ENGINE_HLL16",
        engine::ENGINE_HLL16 as u64,
        "ENGINE_COMMAND: the same with 2^16 registers.",
    ),
    row(
        "ENGINE_CRC32C",
        engine::ENGINE_CRC32C as u64,
        "ENGINE_COMMAND: CRC-32C.",
    ),
    row(
        "ENGINE_RESULT",
        engine::ENGINE_RESULT as u64,
        "ENGINE_COMMAND: gives the result, and clears the engine.",
    ),
    row(
        "DESCRIPTOR_BYTES",
        descriptor::DESCRIPTOR_BYTES as u64,
        "Bytes of one work queue entry, and the stride of the send queue.",
    ),
    row(
        "COMPLETION_BYTES",
        completion::COMPLETION_BYTES as u64,
        "Bytes of one completion line, and the stride of the completion queue.",
    ),
    row(
        "EVENT_BYTES",
        event::Event::LAYOUT.size as u64,
        "Bytes of one event.",
    ),
    row(
        "INLINE_MAX",
        descriptor::INLINE_MAX as u64,
        "Most payload bytes of an inline SEND: words 1 to 5.",
    ),
    row(
        "PUT_INLINE_MAX",
        descriptor::PUT_INLINE_MAX as u64,
        "Most payload bytes of an inline PUT: word 1.",
    ),
    row(
        "SCATTER_MAX",
        completion::SCATTER_MAX as u64,
        "Most received bytes in a completion line: words 5 to 7.",
    ),
    row(
        "NIC_VA",
        descriptor::NIC_VA,
        "First address of the NIC's own memory, which kernels name but cannot read.",
    ),
    row(
        "LAP",
        descriptor::LAP,
        "The lap bit of every word of an entry.",
    ),
    row(
        "STATUS_COUNT",
        Status::ALL.len() as u64,
        "Number of status codes: they count from 0 without a gap.",
    ),
    row(
        "ANY_RANK",
        collective::ANY_RANK as u64,
        "A receive from the rank that sends first.",
    ),
    row(
        "ANY_TAG",
        collective::ANY_TAG as u64,
        "A receive of the message that comes first, with any tag.",
    ),
    row(
        "MAX_PORT",
        collective::MAX_PORT as u64,
        "Largest port of a streamed collective.",
    ),
    row(
        "STREAM_HEAD_AT",
        kernel_stream::HEAD_AT,
        "A kernel's stream: offset of the count of bytes pushed.",
    ),
    row(
        "STREAM_TAIL_AT",
        kernel_stream::TAIL_AT,
        "A kernel's stream: offset of the count of bytes taken.",
    ),
    row(
        "STREAM_STATE_AT",
        kernel_stream::STATE_AT,
        "A kernel's stream: offset of the word that says how an operation failed (status, detail from bit 32 on).",
    ),
    row(
        "STREAM_DATA_AT",
        kernel_stream::DATA_AT,
        "A kernel's stream: offset of the ring.",
    ),
    row(
        "STREAM_ALIGN",
        kernel_stream::ALIGN,
        "A kernel's stream begins at a multiple of this; the address word holds log2 of the ring's bytes below.",
    ),
];

#[cfg(test)]
mod tests {
    use super::*;
    use crate::describe::{BitField, Struct};
    use crate::{Event, EventKind, Flags, Opcode, Status};

    /// Every structure and bit-field table that crosses the border.
    const STRUCTS: &[Struct] = &[
        crate::queue::QueueHandle::LAYOUT,
        Event::LAYOUT,
        block::BlockHeader::LAYOUT,
    ];
    const FIELDS: &[&[BitField]] = &[descriptor::DESCRIPTOR_FIELDS, completion::COMPLETION_FIELDS];

    #[test]
    fn generated_names_are_unique() {
        let tables = [
            TABLE,
            Opcode::TABLE,
            Status::TABLE,
            EventKind::TABLE,
            Flags::TABLE,
            block::BlockKind::TABLE,
        ];
        let names = || tables.iter().flat_map(|t| t.iter()).map(|c| c.name);
        for (i, a) in names().enumerate() {
            assert!(!names().skip(i + 1).any(|b| a == b), "{a} is defined twice");
        }
    }

    #[test]
    fn fields_of_a_word_do_not_overlap() {
        for fields in FIELDS {
            for (i, a) in fields.iter().enumerate() {
                for b in &fields[i + 1..] {
                    assert!(
                        a.word != b.word || a.mask() & b.mask() == 0,
                        "{} and {} overlap",
                        a.name,
                        b.name
                    );
                }
            }
        }
    }

    #[test]
    fn status_codes_have_no_gap() {
        // Kernels take a code of STATUS_COUNT and above for a broken contract.
        for (i, s) in Status::ALL.iter().enumerate() {
            assert_eq!(s.code() as usize, i, "{s}");
        }
    }

    #[test]
    fn structures_have_no_padding() {
        for s in STRUCTS {
            let bytes: usize = s
                .fields
                .iter()
                .map(|f| if f.ty == "u64" { 8 } else { 4 })
                .sum();
            assert_eq!(bytes, s.size, "{}", s.name);
        }
    }
}
