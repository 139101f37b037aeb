//! A bare smoltcp pair: two interfaces with one socket each, Ethernet and ARP as smoltcp does them,
//! over a pair of frame queues in memory. The queues recycle their buffers and need no atomics, so
//! this is as fast as smoltcp gets on one thread.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;

use ringbell_nic_core::port::Checksums;
use smoltcp::iface::{Config, Interface, SocketHandle, SocketSet};
use smoltcp::phy::{Checksum, Device, DeviceCapabilities, Medium, RxToken, TxToken};
use smoltcp::socket::tcp::{Socket, SocketBuffer};
use smoltcp::time::Instant;
use smoltcp::wire::{EthernetAddress, HardwareAddress, IpAddress, IpCidr};

/// Frames that fit between the two, as in a ring of the memory switch.
const DEPTH: usize = 256;

#[derive(Default)]
struct Queue {
    frames: VecDeque<(Box<[u8]>, usize)>,
    free: Vec<Box<[u8]>>,
}

type Line = Rc<RefCell<Queue>>;

struct Wire {
    rx: Line,
    tx: Line,
    mtu: usize,
    checksums: Checksums,
}

struct Rx(Line, Box<[u8]>, usize);
struct Tx(Line, usize);

impl RxToken for Rx {
    fn consume<R, F: FnOnce(&[u8]) -> R>(self, f: F) -> R {
        let r = f(&self.1[..self.2]);
        self.0.borrow_mut().free.push(self.1);
        r
    }
}

impl TxToken for Tx {
    fn consume<R, F: FnOnce(&mut [u8]) -> R>(self, len: usize, f: F) -> R {
        let recycled = self.0.borrow_mut().free.pop();
        let mut frame = recycled.unwrap_or_else(|| vec![0; self.1 + 14].into());
        let r = f(&mut frame[..len]);
        self.0.borrow_mut().frames.push_back((frame, len));
        r
    }
}

impl Device for Wire {
    type RxToken<'a> = Rx;
    type TxToken<'a> = Tx;
    fn receive(&mut self, _: Instant) -> Option<(Rx, Tx)> {
        let (frame, len) = self.rx.borrow_mut().frames.pop_front()?;
        let rx = Rx(Rc::clone(&self.rx), frame, len);
        Some((rx, Tx(Rc::clone(&self.tx), self.mtu)))
    }
    fn transmit(&mut self, _: Instant) -> Option<Tx> {
        let full = self.tx.borrow().frames.len() >= DEPTH;
        (!full).then(|| Tx(Rc::clone(&self.tx), self.mtu))
    }
    fn capabilities(&self) -> DeviceCapabilities {
        let mut caps = DeviceCapabilities::default();
        caps.medium = Medium::Ethernet;
        caps.max_transmission_unit = self.mtu + 14;
        if self.checksums == Checksums::Omitted {
            caps.checksum.ipv4 = Checksum::None;
            caps.checksum.tcp = Checksum::None;
        }
        caps
    }
}

struct End {
    iface: Interface,
    wire: Wire,
    sockets: SocketSet<'static>,
    tcp: SocketHandle,
}

impl End {
    fn new(n: u8, wire: Wire, buffer: usize) -> End {
        let mut wire = wire;
        let mac = EthernetAddress([2, 0, 0, 0, 0, n]);
        let mut config = Config::new(HardwareAddress::Ethernet(mac));
        config.random_seed = u64::from(n);
        let mut iface = Interface::new(config, &mut wire, Instant::ZERO);
        iface.update_ip_addrs(|a| a.extend([IpCidr::new(IpAddress::v4(10, 0, 0, n), 24)]));
        let mut socket = Socket::new(
            SocketBuffer::new(vec![0; buffer]),
            SocketBuffer::new(vec![0; buffer]),
        );
        socket.set_nagle_enabled(false);
        let mut sockets = SocketSet::new(Vec::new());
        let tcp = sockets.add(socket);
        End {
            iface,
            wire,
            sockets,
            tcp,
        }
    }
    fn socket(&mut self) -> &mut Socket<'static> {
        self.sockets.get_mut(self.tcp)
    }
    fn poll(&mut self, now: Instant) {
        self.iface.poll(now, &mut self.wire, &mut self.sockets);
    }
}

/// The pair with its one connection.
pub(crate) struct Bare {
    a: End,
    b: End,
    src: Vec<u8>,
    dst: Vec<u8>,
    start: std::time::Instant,
}

impl Bare {
    pub(crate) fn new(mtu: usize, checksums: Checksums, buffer: usize) -> Bare {
        let (ab, ba) = (Line::default(), Line::default());
        let wire = |rx: &Line, tx: &Line| Wire {
            rx: Rc::clone(rx),
            tx: Rc::clone(tx),
            mtu,
            checksums,
        };
        let mut bare = Bare {
            a: End::new(1, wire(&ba, &ab), buffer),
            b: End::new(2, wire(&ab, &ba), buffer),
            src: (0..1usize << 20)
                .map(|i| (i * 31 + i / 251) as u8)
                .collect(),
            dst: vec![0; 1 << 20],
            start: std::time::Instant::now(),
        };
        bare.b.socket().listen(7000).expect("a fresh socket");
        let context = bare.a.iface.context();
        let socket = bare.a.sockets.get_mut::<Socket>(bare.a.tcp);
        socket
            .connect(context, (IpAddress::v4(10, 0, 0, 2), 7000), 50_000)
            .expect("a fresh socket");
        while !bare.a.socket().may_send() {
            bare.poll();
        }
        bare
    }

    fn poll(&mut self) {
        let now = Instant::from_micros(self.start.elapsed().as_micros() as i64);
        self.a.poll(now);
        self.b.poll(now);
    }

    /// Streams; gives bytes and how many of the last message were wrong.
    pub(crate) fn stream(&mut self, bytes: usize, message: usize) -> (usize, usize) {
        self.dst[..message].fill(0);
        let (mut sent, mut got) = (0, 0);
        while got < bytes {
            while sent < bytes {
                let from = sent % message;
                let part = &self.src[from..message];
                let n = self
                    .a
                    .sockets
                    .get_mut::<Socket>(self.a.tcp)
                    .send_slice(part);
                match n.expect("connected") {
                    0 => break,
                    n => sent += n,
                }
            }
            self.poll();
            loop {
                let to = got % message;
                let part = &mut self.dst[to..message];
                let n = self
                    .b
                    .sockets
                    .get_mut::<Socket>(self.b.tcp)
                    .recv_slice(part);
                match n.expect("connected") {
                    0 => break,
                    n => got += n,
                }
            }
        }
        let differ = |(a, b): (&u8, &u8)| a != b;
        let wrong = self.src[..message]
            .iter()
            .zip(&self.dst[..message])
            .map(differ);
        (bytes, wrong.filter(|&d| d).count())
    }
}
