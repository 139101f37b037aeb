//! Two ends of a connection by the face that programs have, on real sockets or in virtual time, and
//! a model of what they do.
#![allow(dead_code, unreachable_pub)] // Each test program uses a part of it.
#![allow(clippy::disallowed_methods)] // Waits for packets of a real socket.

#[path = "clock.rs"]
mod clock;

use std::time::{Duration, Instant};

pub use clock::Clock;
use ringbell_gtlb::testing::Rng;
use ringbell_roce::verbs::{
    Access, Completion, CompletionQueue, Context, ContextConfig, Local, MemoryRegion, Modify,
    ProtectionDomain, QpAttributes, QpLimits, QueuePair, ReceiveRequest, Remote, Request, Rights,
    Rtr, Rts, SendFlags, SendRequest, Service, Status, VerbsError,
};

/// What moves time for an end that waits: the clock, and the queue by which its peer is stepped.
pub struct World {
    clock: Clock,
    peer: CompletionQueue,
}

/// How far time goes at once.
const TICK: Duration = Duration::from_micros(2);

pub const LONG: Duration = Duration::from_secs(20);
pub const BYTES: usize = 1 << 20;

/// One end of a connection, with memory that the other may use.
pub struct End {
    pub context: Context,
    pub pd: ProtectionDomain,
    pub cq: CompletionQueue,
    pub qp: QueuePair,
    pub memory: MemoryRegion,
    /// Of virtual time.
    pub world: Option<World>,
}

impl End {
    pub fn new(config: &ContextConfig) -> End {
        End::of(Context::open(config).expect("a socket"))
    }

    pub fn of(context: Context) -> End {
        let pd = context.alloc_pd().expect("a domain");
        let cq = context.create_cq(512, None).expect("a queue");
        let qp = pd.create_qp(&attributes(&cq)).expect("a queue pair");
        let memory = pd.alloc(BYTES, Access::REMOTE).expect("memory");
        End {
            context,
            pd,
            cq,
            qp,
            memory,
            world: None,
        }
    }

    pub fn connect(&self, to: &End, mtu: u32, rts: Rts) {
        self.qp.modify(Modify::Init(Rights::ALL)).expect("INIT");
        let rtr = Rtr {
            peer: to.context.gid(),
            number: to.qp.number(),
            expected: 7,
            mtu,
            resources: 16,
            rnr_timer: 1,
        };
        self.qp.modify(Modify::Rtr(rtr)).expect("RTR");
        self.qp.modify(Modify::Rts(rts)).expect("RTS");
    }

    pub fn next(&self) -> Completion {
        let until = Instant::now() + LONG;
        let mut out = [Completion::EMPTY];
        while self.cq.poll(&mut out).expect("no overrun") == 0 {
            assert!(Instant::now() < until, "no completion within {LONG:?}");
            self.pass();
        }
        out[0]
    }

    /// Lets time pass, if it is virtual.
    pub fn pass(&self) {
        if let Some(world) = &self.world {
            world.clock.advance(TICK);
            let _ = world.peer.poll(&mut []).expect("no overrun");
        }
    }

    pub fn remote(&self, offset: u64) -> Remote {
        Remote {
            address: self.memory.address() + offset,
            key: self.memory.rkey(),
        }
    }

    pub fn send(&self, id: u64, request: Request, offset: u64, len: u32) {
        let pieces = [self.memory.piece(offset, len)];
        self.post(id, request, Local::Registered(&pieces))
            .expect("posted");
    }

    pub fn post(&self, id: u64, request: Request, local: Local<'_>) -> Result<(), VerbsError> {
        // A READ may find what a later request writes, unless that one waits for it (IBTA vol. 1
        // table 79).
        let flags = SendFlags {
            signaled: true,
            fence: !matches!(request, Request::Read(_)),
            ..SendFlags::default()
        };
        self.qp.post_send(&SendRequest {
            id,
            request,
            local,
            flags,
        })
    }

    pub fn receive(&self, id: u64, offset: u64, len: u32) {
        let local = [self.memory.piece(offset, len)];
        let receive = ReceiveRequest { id, local: &local };
        self.qp.post_receive(&receive).expect("posted");
    }

    pub fn bytes(&self, offset: usize, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory.read(offset, &mut bytes);
        bytes
    }
}

pub fn attributes(cq: &CompletionQueue) -> QpAttributes<'_> {
    QpAttributes {
        service: Service::Connected,
        send_cq: cq,
        receive_cq: cq,
        shared: None,
        limits: QpLimits::default(),
        signal_all: false,
    }
}

pub const RTS: Rts = Rts {
    first: 7,
    depth: 16,
    timeout: 14,
    retries: 7,
    rnr_retries: 7,
};

pub fn pair(config: &ContextConfig, mtu: u32) -> [End; 2] {
    connected([End::new(config), End::new(config)], mtu)
}

fn connected(ends: [End; 2], mtu: u32) -> [End; 2] {
    let [a, b] = &ends;
    a.connect(b, mtu, RTS);
    b.connect(a, mtu, RTS);
    ends
}

/// Connects two contexts of virtual time.
pub fn virtual_pair(clock: &Clock, contexts: [Context; 2], mtu: u32) -> [End; 2] {
    let mut ends = contexts.map(End::of);
    let queues = ends.each_ref().map(|e| e.cq.clone());
    for (end, peer) in ends.iter_mut().zip(queues.into_iter().rev()) {
        let clock = clock.clone();
        end.world = Some(World { clock, peer });
    }
    connected(ends, mtu)
}

pub fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (i * 7 + seed * 13 + i / 251) as u8)
        .collect()
}

/// The half of each end's memory from which requests read, or which peers write; the other half
/// takes what arrives.
const HALF: u64 = BYTES as u64 / 2;
/// Requests in flight.
const WINDOW: u64 = 16;

/// Random operations of one end on the other, many in flight, against two arrays.
pub fn compare_with_model(seed: u64, requests: u64, [a, b]: &[End; 2]) {
    let mut rng = Rng::new(seed);
    let (mut at_a, mut at_b) = (pattern(3, BYTES), pattern(4, BYTES));
    a.memory.write(0, &at_a);
    b.memory.write(0, &at_b);
    let (mut posted, mut ended, mut received) = (0, 0, 0);
    let mut expected = std::collections::VecDeque::new();
    // Each answer and each message has a place of its own while it is in flight.
    let slot = HALF / (2 * WINDOW);
    while ended < requests {
        if posted < requests && posted - ended < WINDOW {
            let largest = [0, 1, 8, 5_000, slot][rng.below(5) as usize];
            let len = rng.below(largest + 1) as usize;
            let from = rng.below(HALF - slot) as usize;
            let to = rng.below(HALF - slot) as usize;
            let own = (HALF + posted % (2 * WINDOW) * slot) as usize;
            let word = to & !7;
            let old = u64::from_ne_bytes(at_b[word..word + 8].try_into().expect("8 bytes"));
            let (request, place, len) = match rng.below(7) {
                kind @ 0..2 => {
                    b.receive(posted, own as u64, slot as u32);
                    at_b[own..own + len].copy_from_slice(&at_a[from..from + len]);
                    let immediate = (kind == 0).then_some(posted as u32);
                    expected.push_back((posted, len as u32, immediate));
                    (Request::Send(immediate), from, len)
                }
                2 => {
                    at_b[to..to + len].copy_from_slice(&at_a[from..from + len]);
                    (Request::Write(b.remote(to as u64), None), from, len)
                }
                3 => {
                    b.receive(posted, 0, 0);
                    at_b[to..to + len].copy_from_slice(&at_a[from..from + len]);
                    expected.push_back((posted, len as u32, Some(9)));
                    (Request::Write(b.remote(to as u64), Some(9)), from, len)
                }
                4 => {
                    at_a[own..own + len].copy_from_slice(&at_b[to..to + len]);
                    (Request::Read(b.remote(to as u64)), own, len)
                }
                5 => {
                    at_a[own..own + 8].copy_from_slice(&old.to_ne_bytes());
                    let new = old.wrapping_add(posted << 20);
                    at_b[word..word + 8].copy_from_slice(&new.to_ne_bytes());
                    let request = Request::FetchAdd(b.remote(word as u64), posted << 20);
                    (request, own, 8)
                }
                _ => {
                    at_a[own..own + 8].copy_from_slice(&old.to_ne_bytes());
                    let hits = rng.below(2) == 0;
                    if hits {
                        at_b[word..word + 8].copy_from_slice(&posted.to_ne_bytes());
                    }
                    let compare = old.wrapping_add(u64::from(!hits));
                    let request = Request::CompareSwap(b.remote(word as u64), compare, posted);
                    (request, own, 8)
                }
            };
            a.send(posted, request, place as u64, len as u32);
            posted += 1;
            continue;
        }
        let done = a.next();
        assert_eq!(
            (done.id, done.status),
            (ended, Status::Success),
            "seed {seed}"
        );
        ended += 1;
    }
    while let Some((id, len, immediate)) = expected.pop_front() {
        let got = b.next();
        assert_eq!((got.id, got.status), (id, Status::Success), "seed {seed}");
        assert_eq!((got.len, got.immediate), (len, immediate), "seed {seed}");
        received += 1;
    }
    assert!(
        received > requests / 8 && b.cq.poll(&mut [Completion::EMPTY]).expect("no overrun") == 0
    );
    assert!(
        a.bytes(0, BYTES) == at_a,
        "seed {seed}: memory of the requester"
    );
    assert!(
        b.bytes(0, BYTES) == at_b,
        "seed {seed}: memory of the responder"
    );
}
