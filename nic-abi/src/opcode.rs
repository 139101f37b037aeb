//! Operation codes and flags of descriptors.

use crate::coded_enum;

coded_enum! {
    /// Operation of a work queue entry. Zero is no operation, so that zeroed memory is never valid.
    pub enum Opcode: u8 ["OP_"] {
        /// Does nothing and completes: measures the empty command.
        Nop = 1 => "NOP",
        /// Allocates a socket; the completion's detail is the new session id (FpgaNIC §A.1.3).
        Socket = 2 => "SOCKET",
        /// Listens on port `imm & 0xffff`; backlog in `imm >> 16` (0: default 16).
        Listen = 3 => "LISTEN",
        /// Completes when a connection is accepted: detail = new session id, remote address in
        /// `bytes` as ip << 16 | port.
        Accept = 4 => "ACCEPT",
        /// Connects to IPv4 `operand & 0xffffffff`, port `imm & 0xffff`; completes when
        /// established.
        Connect = 5 => "CONNECT",
        /// Sends `len` bytes at `local_va` (or inline); retires when the buffer may be reused.
        Send = 6 => "SEND",
        /// Receives `len` bytes to `local_va`; with the SOME flag completes with 1..=len bytes.
        Recv = 7 => "RECV",
        /// Half-close: no more sends, receives go on (FIN).
        Shutdown = 8 => "SHUTDOWN",
        /// Closes the session after queued sends; its id is refused from then on.
        Close = 9 => "CLOSE",
        /// Resets the session at once (RST); everything queued on it retires with ABORTED.
        Abort = 10 => "ABORT",
        /// Copies `len` bytes from `local_va` to `remote_va` of the same protection domain by NIC
        /// DMA, in bursts of `imm` bytes (0: no limit).
        Copy = 11 => "COPY",
        /// Starts an operation of communicator `session` on this rank: see the fields COLL_*;
        /// counts are in `operand`.
        Collective = 12 => "COLLECTIVE",
        /// Puts an engine on the path of stream `session`, of what queue number `session` moves, or
        /// of what communicator `session` does, from the next byte on, and completes with detail =
        /// engine id. `imm`: the ENGINE_ fields; its kind is one that the host has registered, made
        /// with parameter `operand`, or 0, and `operand` is the id of an engine to share.
        EngineAttach = 13 => "ENGINE_ATTACH",
        /// Takes engine `operand` off every path and ends it; its id is refused from then on.
        EngineDetach = 14 => "ENGINE_DETACH",
        /// Writes the result so far of engine `operand` to `local_va` (`len` bytes of room); bytes
        /// = its length, detail = bytes of an item that the end of a stream has cut (0: none).
        /// `imm`: 0, or 1 for an engine that has a state for each stream; `session` is then the
        /// session, or the rank, whose state is meant.
        EngineResult = 15 => "ENGINE_RESULT",
        /// Writes `len` bytes at `local_va` (or up to PUT_INLINE_MAX inline) to `remote_va` of the
        /// peer of `session`, under its key `rkey`; completes when the bytes are in place there.
        /// With SIGNAL, `operand` is then added to the 64-bit word number `imm` of the region. With
        /// SYMMETRIC, `session` is a communicator, `rkey` a WINDOW_RANK and WINDOW_ID, and
        /// `remote_va` an offset into the window.
        Put = 16 => "PUT",
        /// Reads `len` bytes at `remote_va` of the peer, under its key `rkey`, to `local_va`;
        /// SYMMETRIC as for PUT.
        Get = 17 => "GET",
        /// Adds `operand` to the aligned 64-bit word at `remote_va` of the peer; detail = the value
        /// before. SYMMETRIC as for PUT.
        FetchAdd = 18 => "FETCH_ADD",
        /// Replaces the aligned 64-bit word at `remote_va` of the peer by `local_va` if it is equal
        /// to `operand`; detail = the value before. SYMMETRIC as for PUT.
        CompareSwap = 19 => "COMPARE_SWAP",
    }
}

impl Opcode {
    /// Whether the operation names memory of the peer, which takes no part in it.
    pub const fn is_one_sided(self) -> bool {
        matches!(
            self,
            Opcode::Put | Opcode::Get | Opcode::FetchAdd | Opcode::CompareSwap
        )
    }
}

/// Modifier bits of a descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(pub u8);

impl Flags {
    /// The payload travels inside the descriptor (`SEND`, at most [`crate::INLINE_MAX`] bytes;
    /// `PUT`, at most [`crate::PUT_INLINE_MAX`]).
    pub const INLINE: Flags = Flags(1);
    /// `RECV` completes as soon as at least one byte has arrived.
    pub const SOME: Flags = Flags(2);
    /// `SEND`: nothing follows soon; push what is buffered (TCP PSH).
    pub const PUSH: Flags = Flags(4);
    /// `COLLECTIVE`: starts only when every earlier operation of the queue has retired.
    pub const FENCE: Flags = Flags(8);
    /// `SEND`, `RECV`, `SHUTDOWN`: once one with this bit has failed, those behind it on the
    /// session fail with its status.
    pub const CHAIN: Flags = Flags(16);
    /// One-sided operations: the peer is a rank of communicator `session`, and the address an
    /// offset into a window.
    pub const SYMMETRIC: Flags = Flags(32);
    /// `PUT`: adds `operand` to a word of the region once the bytes are visible.
    pub const SIGNAL: Flags = Flags(64);
    /// `PUT` with `SIGNAL`: stores `operand` there instead.
    pub const SIGNAL_SET: Flags = Flags(128);
    /// Rows for the generators.
    pub const TABLE: &'static [crate::describe::Const] = &[
        crate::describe::Const {
            name: "FLAG_INLINE",
            value: 1,
            doc: "The payload travels inside the descriptor (SEND, at most INLINE_MAX bytes; PUT, at most PUT_INLINE_MAX).",
        },
        crate::describe::Const {
            name: "FLAG_SOME",
            value: 2,
            doc: "RECV completes as soon as at least one byte has arrived.",
        },
        crate::describe::Const {
            name: "FLAG_PUSH",
            value: 4,
            doc: "SEND: nothing follows soon; push what is buffered (TCP PSH).",
        },
        crate::describe::Const {
            name: "FLAG_FENCE",
            value: 8,
            doc: "COLLECTIVE: starts only when every earlier operation of the queue has retired.",
        },
        crate::describe::Const {
            name: "FLAG_CHAIN",
            value: 16,
            doc: "SEND, RECV, SHUTDOWN: once one with this bit has failed, those behind it on the session fail with its status.",
        },
        crate::describe::Const {
            name: "FLAG_SYMMETRIC",
            value: 32,
            doc: "PUT, GET, FETCH_ADD, COMPARE_SWAP: the peer is a rank of communicator `session`, the address an offset into a window.",
        },
        crate::describe::Const {
            name: "FLAG_SIGNAL",
            value: 64,
            doc: "PUT: adds `operand` to 64-bit word number `imm` of the region once the bytes are visible there.",
        },
        crate::describe::Const {
            name: "FLAG_SIGNAL_SET",
            value: 128,
            doc: "PUT with SIGNAL: stores `operand` there instead.",
        },
    ];
    /// All defined bits; a descriptor with any other is refused.
    pub const KNOWN: Flags = Flags(255);
    /// Those that only a one-sided operation may have.
    pub const ONE_SIDED: Flags = Flags(32 | 64 | 128);

    /// Those that a descriptor of this operation may have.
    pub const fn of(opcode: Opcode) -> Flags {
        match opcode {
            Opcode::Put => Flags(1 | 32 | 64 | 128),
            Opcode::Get | Opcode::FetchAdd | Opcode::CompareSwap => Flags::SYMMETRIC,
            _ => Flags(Flags::KNOWN.0 & !Flags::ONE_SIDED.0),
        }
    }

    /// Whether every bit of `other` is set.
    pub const fn contains(self, other: Flags) -> bool {
        self.0 & other.0 == other.0
    }
    /// Both sets of bits.
    pub const fn union(self, other: Flags) -> Flags {
        Flags(self.0 | other.0)
    }
}
