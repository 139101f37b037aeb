//! The BAR map: doorbells and registers of the NIC at fixed offsets.
//!
//! Page 0 is FpgaNIC's control window (§2.5.1, Table 3): 512 doorbell registers at 0x000 and 512
//! status registers at 0x800, 4 bytes each. Queue doorbells follow in pages of their own, one per
//! 64-byte line so that two rings never share a cache line. A doorbell is the first word of its
//! line; the other fifteen are no registers, and an access to one is refused. From 0xc00 on stand
//! the headers of the BAR's blocks ([`block`](crate::block)), read-only. Registers of the control
//! window are either *trapped* (written by the host through `Nic::bar_write32`) or *shared* (plain
//! memory that kernels store to and the NIC polls). Of the control registers kernels may write
//! those of the mailbox. A software NIC ignores their stores to others; a card, which cannot tell a
//! kernel from the host, does not.

/// Bytes of the control window.
pub const CONTROL_BYTES: usize = 4096;
/// First byte of the status registers.
pub const STATUS_BASE: usize = 0x800;
/// First byte of the queue doorbells.
pub const DOORBELL_BASE: usize = 0x1000;
/// Bytes between two queue doorbells.
pub const DOORBELL_STRIDE: usize = 64;
/// Most queues of one NIC.
pub const MAX_QUEUES: usize = 512;
/// Whole BAR in bytes: control window and 512 doorbell lines.
pub const BAR_BYTES: usize = DOORBELL_BASE + MAX_QUEUES * DOORBELL_STRIDE;

/// Name of the memfd that a software NIC keeps its BAR in, so that `ringbell regs` finds the NICs
/// that run on this host: `/proc/PID/fd` shows it as `/memfd:ringbell-bar (deleted)`.
pub const MEMFD_NAME: &str = "ringbell-bar";

/// Value of [`Reg::Magic`]: "RBEL".
pub const MAGIC: u32 = 0x4c45_4252;

/// Access to a register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Read only.
    Ro,
    /// Write only; reads give the last value written.
    Wo,
    /// Read and write.
    Rw,
}

macro_rules! registers {
    ($( $(#[doc = $doc:literal])+ $Var:ident = $index:literal [$acc:ident] => $cname:literal, )+) => {
        /// A 32-bit register of the control window, by index (byte offset = 4 × index).
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[repr(u32)]
        pub enum Reg { $( $(#[doc = $doc])+ $Var = $index, )+ }
        impl Reg {
            /// Every register with its access, C name and meaning.
            pub const ALL: &'static [(Reg, Access, &'static str, &'static str)] = &[
                $( (Reg::$Var, Access::$acc, $cname, concat!($($doc, "\n"),+)), )+
            ];
            /// The register with this index.
            pub const fn from_index(i: u32) -> Option<Reg> { match i { $( $index => Some(Reg::$Var), )+ _ => None } }
            /// Upper-case name as in the C header, without prefix.
            pub const fn name(self) -> &'static str { match self { $( Reg::$Var => $cname, )+ } }
        }
    };
}

registers! {
    /// Writing 1 resets the NIC: every session is aborted, every accepted descriptor retires with
    /// ABORTED.
    Reset = 0 [Wo] => "RESET",
    /// Selects the GTLB instance that the GTLB registers below work on.
    GtlbSelect = 8 [Rw] => "GTLB_SELECT",
    /// Virtual address of the entry, low half (a multiple of 64 KiB).
    GtlbVaLo = 9 [Wo] => "GTLB_VA_LO",
    /// Virtual address, high half.
    GtlbVaHi = 10 [Wo] => "GTLB_VA_HI",
    /// Bus address, low half.
    GtlbPaLo = 11 [Wo] => "GTLB_PA_LO",
    /// Bus address, high half.
    GtlbPaHi = 12 [Wo] => "GTLB_PA_HI",
    /// Index: main entry, or for a base page the complementary entry.
    GtlbIndex = 13 [Wo] => "GTLB_INDEX",
    /// Writes one entry: 1 = main entry of 2 MiB (Algorithm 1 lines 7-11), 2 = complementary entry
    /// of 64 KiB (line 14), 3 = main entry that points to the complementary entry in PA_LO (lines
    /// 15-16), 4 = invalidate the main entry.
    GtlbCommand = 14 [Wo] => "GTLB_COMMAND",
    /// Base virtual address of the selected instance's window, low half.
    GtlbBaseLo = 15 [Rw] => "GTLB_BASE_LO",
    /// Base virtual address, high half; write it after the low half: it moves the window and drops
    /// the instance's entries.
    GtlbBaseHi = 16 [Rw] => "GTLB_BASE_HI",
    /// Answers the miss shown in the status registers: 1 after its entry was written (refused while
    /// it is missing; the faulted operation is to be repeated), 2 dismisses it.
    GtlbRefill = 17 [Wo] => "GTLB_REFILL",
    /// Connection of the card whose received payloads pass the engine that ENGINE_COMMAND attaches
    /// next.
    EngineConn = 18 [Wo] => "ENGINE_CONN",
    /// The engine of the card on the path of received payloads: 0 = none, 1 = HyperLogLog of 2^14
    /// registers, 2 = of 2^16, 3 = CRC-32C, attached to the connection in ENGINE_CONN and cleared;
    /// 4 = gives its result and clears it. Refused while another command waits, or where there is
    /// no engine to read. Hardware alone has it.
    EngineCommand = 19 [Wo] => "ENGINE_COMMAND",
    /// Mailbox: the value that a kernel tells the host. Kernels may write it.
    MailboxData = 32 [Rw] => "MAILBOX_DATA",
    /// Mailbox: any number but that of MAILBOX_TAKEN hands MAILBOX_DATA to the host, as event
    /// MAILBOX. Kernels may write it.
    MailboxRing = 33 [Rw] => "MAILBOX_RING",
    /// Own MAC address, low 32 bits.
    MacLo = 128 [Rw] => "MAC_LO",
    /// Own IPv4 address, host byte order.
    Ipv4 = 129 [Rw] => "IPV4",
    /// Own MAC address, high 16 bits.
    MacHi = 130 [Rw] => "MAC_HI",
    /// Reads as MAGIC.
    Magic = 512 [Ro] => "MAGIC",
    /// Version of this contract.
    AbiVersion = 513 [Ro] => "ABI_VERSION",
    /// Backend: 1 soft, 2 rtl, 3 pcie.
    Backend = 514 [Ro] => "BACKEND",
    /// Number of queues configured.
    Queues = 515 [Ro] => "QUEUES",
    /// Number of GTLB instances.
    GtlbInstances = 516 [Ro] => "GTLB_INSTANCES",
    /// Main entries of the selected instance.
    GtlbMainEntries = 517 [Ro] => "GTLB_MAIN_ENTRIES",
    /// Complementary entries of the selected instance.
    GtlbComplementaryEntries = 518 [Ro] => "GTLB_COMPLEMENTARY_ENTRIES",
    /// Misses since reset, all instances.
    GtlbMisses = 519 [Ro] => "GTLB_MISSES",
    /// Refills since reset.
    GtlbRefills = 520 [Ro] => "GTLB_REFILLS",
    /// Address of the last miss, low half.
    GtlbMissVaLo = 521 [Ro] => "GTLB_MISS_VA_LO",
    /// Address of the last miss, high half.
    GtlbMissVaHi = 522 [Ro] => "GTLB_MISS_VA_HI",
    /// Faults since reset.
    Faults = 523 [Ro] => "FAULTS",
    /// Descriptors accepted, low half.
    Accepted = 524 [Ro] => "ACCEPTED",
    /// Descriptors retired, low half.
    Retired = 525 [Ro] => "RETIRED",
    /// Payload bytes sent, low half.
    TxBytesLo = 526 [Ro] => "TX_BYTES_LO",
    /// Payload bytes sent, high half.
    TxBytesHi = 527 [Ro] => "TX_BYTES_HI",
    /// Payload bytes received, low half.
    RxBytesLo = 528 [Ro] => "RX_BYTES_LO",
    /// Payload bytes received, high half.
    RxBytesHi = 529 [Ro] => "RX_BYTES_HI",
    /// Frames dropped as malformed or not ours.
    FramesDropped = 530 [Ro] => "FRAMES_DROPPED",
    /// Events lost because the event queue was full.
    EventsLost = 531 [Ro] => "EVENTS_LOST",
    /// Open sessions, listeners included.
    Sessions = 532 [Ro] => "SESSIONS",
    /// Last malformed descriptor: queue << 8 | word at fault.
    BadDescriptor = 533 [Ro] => "BAD_DESCRIPTOR",
    /// Counts NIC steps: a live NIC moves it.
    Heartbeat = 534 [Ro] => "HEARTBEAT",
    /// Ports.
    Ports = 535 [Ro] => "PORTS",
    /// Frames and datagrams sent, by all ports.
    FramesSent = 536 [Ro] => "FRAMES_SENT",
    /// Frames and datagrams received, by all ports.
    FramesReceived = 537 [Ro] => "FRAMES_RECEIVED",
    /// Frames and datagrams that a port could not send.
    FramesLost = 538 [Ro] => "FRAMES_LOST",
    /// Byte offset of the first block header, 0 without any.
    Blocks = 539 [Ro] => "BLOCKS",
    /// The number of MAILBOX_RING whose value was taken last: while both are equal the mailbox is
    /// free.
    MailboxTaken = 540 [Ro] => "MAILBOX_TAKEN",
}

impl Reg {
    /// Byte offset in the BAR.
    pub const fn offset(self) -> usize {
        self as usize * 4
    }
    /// Whether the register lies in the status half.
    pub const fn is_status(self) -> bool {
        self.offset() >= STATUS_BASE
    }
}

/// Byte offset of the doorbell of queue `q`.
pub const fn doorbell_offset(q: u32) -> usize {
    DOORBELL_BASE + q as usize * DOORBELL_STRIDE
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_registers_are_read_only_and_in_their_half() {
        for (reg, access, name, doc) in Reg::ALL {
            assert_eq!(reg.is_status(), *access == Access::Ro, "{name}");
            assert!(reg.offset() < CONTROL_BYTES && !doc.trim().is_empty());
        }
    }
}
