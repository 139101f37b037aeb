//! Numbers of RoCEv2 that a NIC's hardware and software must agree on with every other RoCEv2 NIC.
//!
//! IBTA vol. 1 §9.2 (base transport header), §9.3 (extended headers), and annex A17 (RoCEv2).

use crate::coded_enum;
use crate::describe::Const;

coded_enum! {
    /// Operation of a RoCEv2 packet: the first byte of its base transport header (IBTA vol. 1
    /// §9.2.1, table 38).
    pub enum RoceOpcode: u8 ["ROCE_"] {
        /// Reliable connection: first packet of a SEND.
        SendFirst = 0x00 => "SEND_FIRST",
        /// Reliable connection: a packet inside a SEND.
        SendMiddle = 0x01 => "SEND_MIDDLE",
        /// Reliable connection: last packet of a SEND.
        SendLast = 0x02 => "SEND_LAST",
        /// Reliable connection: last packet of a SEND with immediate data.
        SendLastImm = 0x03 => "SEND_LAST_IMM",
        /// Reliable connection: the only packet of a SEND.
        SendOnly = 0x04 => "SEND_ONLY",
        /// Reliable connection: the only packet of a SEND with immediate data.
        SendOnlyImm = 0x05 => "SEND_ONLY_IMM",
        /// Reliable connection: first packet of an RDMA WRITE.
        WriteFirst = 0x06 => "WRITE_FIRST",
        /// Reliable connection: a packet inside an RDMA WRITE.
        WriteMiddle = 0x07 => "WRITE_MIDDLE",
        /// Reliable connection: last packet of an RDMA WRITE.
        WriteLast = 0x08 => "WRITE_LAST",
        /// Reliable connection: last packet of an RDMA WRITE with immediate data.
        WriteLastImm = 0x09 => "WRITE_LAST_IMM",
        /// Reliable connection: the only packet of an RDMA WRITE.
        WriteOnly = 0x0a => "WRITE_ONLY",
        /// Reliable connection: the only packet of an RDMA WRITE with immediate data.
        WriteOnlyImm = 0x0b => "WRITE_ONLY_IMM",
        /// Reliable connection: request of an RDMA READ.
        ReadRequest = 0x0c => "READ_REQUEST",
        /// Reliable connection: first packet of the answer to a READ.
        ReadResponseFirst = 0x0d => "READ_RESPONSE_FIRST",
        /// Reliable connection: a packet inside the answer to a READ.
        ReadResponseMiddle = 0x0e => "READ_RESPONSE_MIDDLE",
        /// Reliable connection: last packet of the answer to a READ.
        ReadResponseLast = 0x0f => "READ_RESPONSE_LAST",
        /// Reliable connection: the only packet of the answer to a READ.
        ReadResponseOnly = 0x10 => "READ_RESPONSE_ONLY",
        /// Reliable connection: acknowledgement, positive or negative.
        Acknowledge = 0x11 => "ACKNOWLEDGE",
        /// Reliable connection: answer to an atomic operation.
        AtomicAcknowledge = 0x12 => "ATOMIC_ACKNOWLEDGE",
        /// Reliable connection: compares a word and swaps it when equal.
        CompareSwap = 0x13 => "COMPARE_SWAP",
        /// Reliable connection: adds to a word.
        FetchAdd = 0x14 => "FETCH_ADD",
        /// Reliable connection: last packet of a SEND that invalidates a key of the receiver.
        SendLastInvalidate = 0x16 => "SEND_LAST_INVALIDATE",
        /// Reliable connection: the only packet of a SEND that invalidates a key of the receiver.
        SendOnlyInvalidate = 0x17 => "SEND_ONLY_INVALIDATE",
        /// Unreliable datagram: the only packet of a SEND.
        DatagramSend = 0x64 => "DATAGRAM_SEND",
        /// Unreliable datagram: the only packet of a SEND with immediate data.
        DatagramSendImm = 0x65 => "DATAGRAM_SEND_IMM",
        /// Congestion notification (annex A17 §A17.9.3).
        CongestionNotification = 0x81 => "CONGESTION_NOTIFICATION",
    }
}

coded_enum! {
    /// Reason of a negative acknowledgement: the low five bits of its syndrome (IBTA vol. 1
    /// §9.7.5.2.8, table 46).
    pub enum NakCode: u8 ["ROCE_NAK_"] {
        /// A packet is missing: its sequence number is not the expected one.
        Sequence = 0 => "SEQUENCE",
        /// The request is malformed, out of order within its message, or longer than the receiver's
        /// buffer.
        InvalidRequest = 1 => "INVALID_REQUEST",
        /// The key, the bounds or the rights of remote memory do not allow the request.
        RemoteAccess = 2 => "REMOTE_ACCESS",
        /// The responder cannot complete the request for a reason of its own.
        RemoteOperation = 3 => "REMOTE_OPERATION",
    }
}

/// UDP destination port of RoCEv2 (annex A17 §A17.3.1.2).
pub const ROCE_UDP_PORT: u16 = 4791;
/// Partition key of the default partition, with full membership (IBTA vol. 1 §10.9.1.1).
pub const ROCE_PKEY_DEFAULT: u16 = 0xffff;
/// Bits of a packet sequence number.
pub const PSN_BITS: u32 = 24;
/// Bits of a queue pair number.
pub const QPN_BITS: u32 = 24;
/// Queue pair of the communication management's datagrams (IBTA vol. 1 §13.5.1).
pub const QPN_GSI: u32 = 1;
/// Queue key of queue pair 1 (IBTA vol. 1 §3.5.3).
pub const QKEY_GSI: u32 = 0x8001_0000;
/// Syndrome of an acknowledgement, before the credits in its low five bits (IBTA vol. 1
/// §9.7.5.2.1).
pub const SYNDROME_ACK: u8 = 0x00;
/// Syndrome of a receiver that is not ready, before the timer in its low five bits.
pub const SYNDROME_RNR: u8 = 0x20;
/// Syndrome of a negative acknowledgement, before the [`NakCode`] in its low five bits.
pub const SYNDROME_NAK: u8 = 0x60;
/// Bits of a syndrome that give its kind.
pub const SYNDROME_KIND: u8 = 0xe0;
/// Credit count of a responder that states no credits (IBTA vol. 1 §9.7.7.2.4).
pub const CREDITS_INVALID: u8 = 31;

const fn row(name: &'static str, value: u64, doc: &'static str) -> Const {
    Const { name, value, doc }
}

/// Rows for the generators: the constants beside the two enumerations.
pub const TABLE: &[Const] = &[
    row(
        "ROCE_UDP_PORT",
        ROCE_UDP_PORT as u64,
        "UDP destination port of RoCEv2.",
    ),
    row(
        "ROCE_PKEY_DEFAULT",
        ROCE_PKEY_DEFAULT as u64,
        "Partition key of the default partition, with full membership.",
    ),
    row(
        "ROCE_PSN_BITS",
        PSN_BITS as u64,
        "Bits of a packet sequence number.",
    ),
    row(
        "ROCE_QPN_BITS",
        QPN_BITS as u64,
        "Bits of a queue pair number.",
    ),
    row(
        "ROCE_QPN_GSI",
        QPN_GSI as u64,
        "Queue pair of the communication management's datagrams.",
    ),
    row(
        "ROCE_QKEY_GSI",
        QKEY_GSI as u64,
        "Queue key of that queue pair.",
    ),
    row(
        "ROCE_SYNDROME_KIND",
        SYNDROME_KIND as u64,
        "Bits of a syndrome that give its kind.",
    ),
    row(
        "ROCE_SYNDROME_ACK",
        SYNDROME_ACK as u64,
        "Kind of a syndrome: acknowledgement; the low five bits are credits.",
    ),
    row(
        "ROCE_SYNDROME_RNR",
        SYNDROME_RNR as u64,
        "Kind of a syndrome: receiver not ready; the low five bits are a timer.",
    ),
    row(
        "ROCE_SYNDROME_NAK",
        SYNDROME_NAK as u64,
        "Kind of a syndrome: negative acknowledgement; the low five bits are a ROCE_NAK_ code.",
    ),
    row(
        "ROCE_CREDITS_INVALID",
        CREDITS_INVALID as u64,
        "Credit count of a responder that states no credits.",
    ),
];
