//! A neighbour that breaks the rules of a wire: its wire goes down and is counted, the others carry
//! on.

use ringbell_hw_sim::router_ring::Block;
use ringbell_routes::route::{Algorithm, Routes};
use ringbell_routes::topology::Topology;

use super::network::{packet, Book, Network, Packet, Router, Word, DIGEST};
use super::routed;

const DOWN: u64 = 0;
const INIT: u64 = 1;
const UP: u64 = 2;
/// The node with the neighbour, the wire, and the other two of its network.
const NODE: usize = 0;
const WIRE: usize = 1;
const LAST: usize = 2;

/// A word of the neighbour; a packet has a channel and a number.
#[derive(Debug, Clone, Copy, Default)]
struct Forged {
    state: u64,
    packet: Option<(u64, u64, Packet)>,
    hops: u64,
    ack: u64,
    limit: (u64, u64),
    version: u64,
}

impl Forged {
    fn up() -> Forged {
        Forged {
            state: UP,
            ..Forged::default()
        }
    }

    fn word(self) -> Word {
        let rules = u64::from(DIGEST) << 32
            | (Block::DEPTH as u64) << 16
            | (Block::CHANNELS as u64) << 8
            | 1;
        let rules: Packet = [rules as u32, (rules >> 32) as u32, 0, 0, 0, 0, 0, 0];
        let (channel, number, bits) = self.packet.unwrap_or((0, 0, rules));
        let head = self.state
            | u64::from(self.packet.is_some()) << 2
            | channel << 4
            | self.limit.0 << 8
            | self.hops << 12
            | number << 20
            | self.ack << 32
            | self.limit.1 << 44
            | self.version << 56;
        std::array::from_fn(|i| match i {
            0 => head as u32,
            1 => (head >> 32) as u32,
            _ => bits[i - 2],
        })
    }
}

/// A bus of three routers; the first one's free wire leads to the neighbour.
struct Bench {
    network: Network<Block>,
    routes: Routes,
    book: Book,
}

impl Bench {
    fn new(seed: u64) -> Bench {
        let (topology, routes): (Topology, Routes) = routed("bus:3", Algorithm::Layered);
        let mut network = super::started::<Block>(&topology, &routes, 8, 4, seed);
        assert_eq!(network.nodes[NODE].up(), 1, "the free wire is down");
        network.loss = 5;
        Bench {
            network,
            routes,
            book: Book::default(),
        }
    }

    /// Sends a word for so many cycles, while the other two nodes send each other packets.
    fn say(&mut self, word: Word, cycles: u64) {
        self.network.forged.insert((NODE, WIRE), word);
        for _ in 0..cycles {
            for (from, to) in [(NODE, LAST), (LAST, NODE), (LAST, 1)] {
                if self.network.to_send[from].is_empty() {
                    self.book.send(&mut self.network, &self.routes, from, to);
                }
            }
            self.network.step();
            self.book.check(&mut self.network, &self.routes);
        }
    }

    fn is_up(&self) -> bool {
        self.network.nodes[NODE].up() >> WIRE & 1 == 1
    }

    /// An honest greeting; before it the wire is quiet.
    fn greet(&mut self) {
        for state in [DOWN, INIT] {
            let word = Forged {
                state,
                ..Forged::default()
            };
            self.say(word.word(), 300);
        }
        assert!(self.is_up());
        self.say(Forged::up().word(), 100);
        assert!(self.is_up());
    }

    fn resets(&self) -> u64 {
        self.network.nodes[NODE].resets()
    }
}

#[test]
fn a_neighbour_that_breaks_the_rules_loses_its_wire_alone() {
    let mut bench = Bench::new(1);
    let here = packet(7, NODE, 0);
    let limit = Block::DEPTH as u64 + 1;
    let breaches = [
        (
            "confirms what was not sent",
            Forged {
                ack: 1,
                ..Forged::up()
            },
        ),
        (
            "confirms what is older than all",
            Forged {
                ack: 4095,
                ..Forged::up()
            },
        ),
        (
            "gives more credit than slots",
            Forged {
                limit: (0, limit),
                ..Forged::up()
            },
        ),
        (
            "gives credit for no channel",
            Forged {
                limit: (5, 1),
                ..Forged::up()
            },
        ),
        (
            "sends in no channel",
            Forged {
                packet: Some((9, 0, here)),
                ..Forged::up()
            },
        ),
        (
            "sends a number far ahead",
            Forged {
                packet: Some((0, 64, here)),
                ..Forged::up()
            },
        ),
        (
            "begins anew",
            Forged {
                state: DOWN,
                ..Forged::up()
            },
        ),
    ];
    for (n, (what, forged)) in breaches.into_iter().enumerate() {
        bench.greet();
        bench.say(forged.word(), 1);
        assert!(!bench.is_up(), "{what}");
        assert_eq!(bench.resets(), n as u64 + 1, "{what}");
        // Silent from now on.
        bench.network.forged.clear();
    }
    assert!(
        bench.book.total > 1_000,
        "{} packets beside it",
        bench.book.total
    );
}

#[test]
fn a_neighbour_that_ignores_credit_fills_its_own_slots_alone() {
    let mut bench = Bench::new(2);
    bench.greet();
    // Its packets are for the next node but one, whose node takes none.
    bench.network.stopped = 1 << LAST;
    let mut sent = 0;
    while bench.is_up() {
        let forged = Forged {
            packet: Some((0, sent, packet(7, LAST, sent as u32))),
            hops: 3,
            ..Forged::up()
        };
        bench.network.forged.insert((NODE, WIRE), forged.word());
        bench.network.step();
        sent += 1;
        assert!(sent < 200, "it still sends");
    }
    assert_eq!(bench.resets(), 1);
    // The slots of two queues and of what is behind them: none is beyond its own.
    assert!(sent > Block::DEPTH as u64, "{sent} were taken");
}

#[test]
fn words_without_meaning_change_nothing() {
    let mut bench = Bench::new(3);
    // Another version, and other rules: the wire stays down.
    let version = Forged {
        version: 1,
        ..Forged::default()
    };
    bench.say(version.word(), 600);
    assert!(!bench.is_up());
    let mut other = Forged::default().word();
    other[2] ^= 1 << 16;
    bench.say(other, 600);
    assert!(!bench.is_up());
    assert_eq!(bench.network.nodes[NODE].refused() >> WIRE & 1, 1);
    bench.greet();
    assert_eq!(bench.network.nodes[NODE].refused(), 0);
    // Damaged words, and none at all for less than the wire's patience.
    bench.say(
        Forged {
            version: 255,
            ..Forged::up()
        }
        .word(),
        1_000,
    );
    assert!(bench.is_up());
    bench.say(Forged::up().word(), 1);
    // No credit is given: nothing leaves by the wire.
    let Bench { network, .. } = &bench;
    assert_eq!(network.nodes[NODE].word(WIRE)[0] >> 2 & 1, 0);
    assert_eq!(bench.resets(), 0);
}

#[test]
fn packets_without_a_way_and_those_that_go_round_are_dropped_and_counted() {
    let mut bench = Bench::new(4);
    bench.greet();
    let drops = |bench: &Bench| bench.network.nodes.iter().map(Router::dropped).sum::<u64>();
    let cases = [
        // A destination that does not exist; no hop left for another node.
        (packet(7, 200, 0), 9, 1),
        (packet(7, LAST, 0), 0, 2),
        // One hop is not enough: the node in between drops it.
        (packet(7, LAST, 0), 1, 3),
    ];
    for (number, (packet, hops, dropped)) in cases.into_iter().enumerate() {
        let forged = Forged {
            packet: Some((0, number as u64, packet)),
            hops,
            ..Forged::up()
        };
        bench.say(forged.word(), 1);
        bench.say(Forged::up().word(), 100);
        assert_eq!(drops(&bench), dropped, "{hops} hops");
    }
    // A packet that says it comes from its own destination is one like others; it comes once,
    // though it is repeated.
    let own = packet(NODE, NODE, 0);
    let forged = Forged {
        packet: Some((0, 3, own)),
        ..Forged::up()
    };
    bench.network.forged.insert((NODE, WIRE), forged.word());
    for _ in 0..20 {
        bench.network.step();
    }
    let came = &bench.network.came[NODE];
    assert_eq!(came.iter().filter(|(_, got)| *got == own).count(), 1);
    assert!(bench.is_up());
    assert_eq!(bench.resets(), 0);
}

#[test]
fn tables_that_go_round_are_ended_by_the_budget_of_hops() {
    let (topology, routes) = routed("ring:3", Algorithm::Layered);
    let mut network = super::started::<Block>(&topology, &routes, 3, 1, 5);
    // Every node sends packets for 77 on by its first wire.
    for node in 0..3 {
        network.nodes[node].set_way(77, 0);
    }
    network.wait_up();
    network.to_send[NODE].push_back((0, packet(NODE, 77, 0)));
    let drops = |network: &Network<Block>| network.nodes.iter().map(Router::dropped).sum::<u64>();
    network.run(1_000, |n| drops(n) == 1);
    assert!(network.came.iter().all(Vec::is_empty));
}
