//! Newtypes for the numbers of the contract, so that one cannot be passed for another.

macro_rules! id {
    ($(#[doc = $doc:literal])+ $Name:ident($ty:ty), $fmt:literal) => {
        $(#[doc = $doc])+
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
        #[repr(transparent)]
        pub struct $Name(pub $ty);
        impl core::fmt::Display for $Name {
            fn fmt(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result { write!(f, $fmt, self.0) }
        }
    };
}

id!(/// A virtual address as the GPU kernel sees it. Never dereferenced by the NIC: the GTLB turns it
    /// into bus addresses first (FpgaNIC §2.3.2).
    GpuVa(u64), "{:#x}");
id!(/// One stream session (a TCP connection or its `local` equivalent), or a listening socket.
    /// 24 bits: slot in the low 16, generation in the high 8, so that a stale id is refused.
    SessionId(u32), "session {}");
id!(/// A send queue with its completion lines, and the doorbell that signals new entries.
    QueueId(u32), "queue {}");
id!(/// An engine of a NIC, on the path of one stream or several. Never 0; slot in the low 16 bits,
    /// generation above, so that a stale id is refused.
    EngineId(u32), "engine {}");
id!(/// A protection domain: a queue reaches only the memory regions of its own domain.
    PdId(u32), "pd {}");
id!(/// Local key of a memory region. 0 in a descriptor means "find the region by address".
    Lkey(u32), "lkey {:#x}");
id!(/// Remote key of a memory region: what a peer must present.
    Rkey(u32), "rkey {:#x}");

impl GpuVa {
    /// The address `bytes` further on; `None` when it would wrap.
    pub const fn checked_add(self, bytes: u64) -> Option<GpuVa> {
        match self.0.checked_add(bytes) {
            Some(v) => Some(GpuVa(v)),
            None => None,
        }
    }
}
