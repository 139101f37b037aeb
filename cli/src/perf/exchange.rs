//! The TCP connection by which the two sides of a measurement between hosts find each other, as
//! perftest's do.
//!
//! The server waits, and the client names the server's host. Each sends one line of JSON: the
//! version, its NIC's address, the UDP address at which it receives RoCEv2, and the client also
//! what it measures and how much GPU memory that takes. Packet size, queue pairs and memory keys
//! are agreed on by the NICs themselves afterwards.
#![allow(clippy::disallowed_methods)] // The program: waits for its peer with a deadline.

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs as _};
use std::time::{Duration, Instant};

use anyhow::{anyhow, bail, Context, Result};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::{stdio, Exit, Problem};

/// Default TCP port, that of perftest.
pub(super) const PORT: u16 = 18_515;
/// Version of these lines and of the plans that follow. Both sides have the same.
const VERSION: u32 = 1;
/// Longest line.
const LINE_MAX: usize = 1 << 10;
/// Longest time for a line of the other side's: it opens its NIC meanwhile.
const ANSWER: Duration = Duration::from_secs(20);
/// Longest time for the first line of who has connected: until then no other client is heard.
const QUESTION: Duration = Duration::from_secs(5);
/// Interval between two attempts.
const AGAIN: Duration = Duration::from_millis(20);

/// What a line begins with; other versions may have other fields behind it.
#[derive(Debug, Serialize, Deserialize)]
struct Line<T> {
    ringbell_perf: u32,
    /// Why the server serves no measurement.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
    #[serde(flatten)]
    fields: Option<T>,
}

/// Where a side's NIC is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Place {
    /// Its own address.
    pub(super) nic: Ipv4Addr,
    /// Where it receives.
    pub(super) at: SocketAddr,
}

/// What the client says.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Question {
    /// What is measured.
    pub(super) benchmark: String,
    /// Bytes of GPU memory that the server needs for it.
    pub(super) memory: u64,
    /// The client's NIC.
    #[serde(flatten)]
    pub(super) place: Place,
}

/// A connection to the other side.
pub(super) struct Exchange {
    stream: TcpStream,
    /// The other side, for messages.
    peer: String,
}

/// `HOST`, `HOST:PORT` or `[IPv6]:PORT`.
pub(super) fn host(text: &str) -> Result<(String, u16), String> {
    if text.parse::<IpAddr>().is_ok() {
        return Ok((text.into(), PORT));
    }
    let (host, port) = match text.rsplit_once(':') {
        None => (text, Ok(PORT)),
        Some((host, port)) => (host, port.parse()),
    };
    let name = host.trim_start_matches('[').trim_end_matches(']');
    let written = !name.is_empty() && !name.contains(|c: char| c == '/' || c.is_whitespace());
    match port {
        Ok(port) if written && port != 0 => Ok((name.into(), port)),
        _ => Err(format!(
            "`{text}` is no host; write a name or an address, or HOST:PORT for another TCP port than {PORT}"
        )),
    }
}

/// Waits for a client on a TCP port. Connections of anything else are refused and noted.
///
/// # Errors
/// The port is taken, or no client came in time.
pub(super) fn wait(port: u16, patience: Duration) -> Result<(Exchange, Question)> {
    let any = [
        SocketAddr::from((std::net::Ipv6Addr::UNSPECIFIED, port)),
        SocketAddr::from((Ipv4Addr::UNSPECIFIED, port)),
    ];
    let listener = TcpListener::bind(&any[..]).with_context(|| {
        Problem::new(
            Exit::Environment,
            format!("cannot wait for a client on TCP port {port}"),
            "end the other server, or give both sides another port: --listen :PORT here, HOST:PORT there",
        )
    })?;
    listener.set_nonblocking(true)?;
    stdio::note(format_args!("listening on TCP port {port}"));
    let deadline = Instant::now() + patience;
    while Instant::now() < deadline {
        let (stream, from) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(_) => {
                std::thread::sleep(AGAIN);
                continue;
            }
        };
        let peer = SocketAddr::new(from.ip().to_canonical(), from.port()).to_string();
        let heard = Exchange::new(stream, peer.clone()).and_then(|mut exchange| {
            match exchange.hear(QUESTION.min(deadline.saturating_duration_since(Instant::now()))) {
                Ok(question) => Ok((exchange, question)),
                Err(e) => {
                    // It may not read it, and has no measurement in any case.
                    let _ = exchange.say::<()>(Some(format!("{e:#}")), None);
                    Err(e)
                }
            }
        });
        match heard {
            Ok(found) => return Ok(found),
            Err(e) => stdio::note(format_args!("no client at {peer}: {e:#}")),
        }
    }
    Err(Problem::new(
        Exit::Failed,
        format!("no client came to TCP port {port} within {patience:?}"),
        "start the same benchmark with this host's name on the other one; --timeout gives it more time",
    )
    .into())
}

/// Connects to a server's host, again and again until `patience` has passed: it may still be
/// starting.
///
/// # Errors
/// The name is unknown, or the host does not answer.
pub(super) fn connect((host, port): &(String, u16), patience: Duration) -> Result<Exchange> {
    let deadline = Instant::now() + patience;
    let name = format!("{host} (TCP port {port})");
    loop {
        let found = (host.as_str(), *port).to_socket_addrs();
        let mut last = match &found {
            Ok(_) => io::Error::from(io::ErrorKind::NotFound),
            Err(e) => io::Error::new(e.kind(), e.to_string()),
        };
        for to in found.into_iter().flatten() {
            let left = deadline.saturating_duration_since(Instant::now());
            match TcpStream::connect_timeout(&to, left.max(AGAIN)) {
                Ok(stream) => return Exchange::new(stream, name),
                Err(e) => last = e,
            }
        }
        if Instant::now() + AGAIN >= deadline {
            return Err(anyhow!(last).context(Problem::new(
                Exit::Failed,
                format!("cannot connect to {name} within {patience:?}"),
                "start the same benchmark with --listen there, and check the name and the port",
            )));
        }
        std::thread::sleep(AGAIN);
    }
}

impl Exchange {
    fn new(stream: TcpStream, peer: String) -> Result<Exchange> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        Ok(Exchange { stream, peer })
    }

    /// Our address as the other side reaches it.
    ///
    /// # Errors
    /// The connection is gone.
    pub(super) fn local(&self) -> Result<SocketAddr> {
        let mut own = self.stream.local_addr()?;
        // A link-local address keeps its interface.
        own.set_ip(own.ip().to_canonical());
        own.set_port(0);
        Ok(own)
    }

    /// The other side, for messages.
    pub(super) fn peer(&self) -> &str {
        &self.peer
    }

    /// The client's line, and the server's answer.
    ///
    /// # Errors
    /// The server refuses, or is none.
    pub(super) fn ask(&mut self, question: Question) -> Result<Place> {
        let said = self.say(None, Some(question));
        // A server that has refused has closed: its reason is there to be read.
        let answer = self.hear(ANSWER).map_err(|e| match said {
            Err(first) if Problem::exit_of(&e) == Exit::Failed => e.context(first),
            _ => e,
        });
        answer.with_context(|| {
            Problem::new(
                Exit::Failed,
                format!("{} serves no measurement", self.peer),
                "run the same release of ringbell on both hosts, and start `ringbell perf ... --listen` there",
            )
        })
    }

    /// The server's answer.
    ///
    /// # Errors
    /// The client is gone.
    pub(super) fn answer(&mut self, place: Place) -> Result<()> {
        self.say(None, Some(place))
    }

    fn say<T: Serialize>(&mut self, refused: Option<String>, fields: Option<T>) -> Result<()> {
        let line = Line {
            ringbell_perf: VERSION,
            refused,
            fields,
        };
        let text = serde_json::to_string(&line).context("cannot express a line as JSON")?;
        self.stream.set_write_timeout(Some(QUESTION))?;
        let sent = self.stream.write_all((text + "\n").as_bytes());
        sent.with_context(|| format!("cannot send to {}", self.peer))
    }

    /// The other side's line, which must come as a whole within `limit`.
    fn hear<T: DeserializeOwned>(&mut self, limit: Duration) -> Result<T> {
        let text = self.line(limit)?;
        let shown: String = text.chars().take(40).flat_map(char::escape_debug).collect();
        match serde_json::from_str::<Line<T>>(&text) {
            Err(_) => bail!("it is no `ringbell perf`: it says `{shown}`"),
            Ok(other) if other.ringbell_perf != VERSION => bail!(
                "it has version {} of the measurements' exchange, and this command version {VERSION}",
                other.ringbell_perf
            ),
            Ok(Line {
                refused: Some(why), ..
            }) => bail!("it refuses: {}", why.escape_debug()),
            Ok(Line { fields, .. }) => fields.context("its line lacks what is needed"),
        }
    }

    fn line(&mut self, limit: Duration) -> Result<String> {
        let deadline = Instant::now() + limit;
        let mut bytes = Vec::new();
        let mut byte = [0];
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                bail!("it said nothing whole within {limit:?}");
            }
            self.stream.set_read_timeout(Some(left))?;
            // Byte by byte: what follows the line is not ours to take, and a line is short.
            match self.stream.read(&mut byte) {
                Ok(0) if bytes.is_empty() => bail!("it closed the connection without a word"),
                Ok(0) => break,
                Ok(_) if byte == *b"\n" => break,
                Ok(_) if bytes.len() == LINE_MAX => {
                    bail!("its line is longer than {LINE_MAX} bytes")
                }
                Ok(_) => bytes.extend(byte),
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::WouldBlock
                            | io::ErrorKind::TimedOut
                            | io::ErrorKind::Interrupted
                    ) => {}
                Err(e) => return Err(e).context("the connection broke"),
            }
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Exchange, TcpStream) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let at = listener.local_addr().expect("bound");
        let other = TcpStream::connect(at).expect("it listens");
        let (stream, _) = listener.accept().expect("connected");
        let exchange = Exchange::new(stream, "the peer".into()).expect("a socket");
        (exchange, other)
    }

    fn place(n: u8) -> Place {
        Place {
            nic: Ipv4Addr::new(10, 77, 0, n),
            at: SocketAddr::from(([127, 0, 0, 1], 4791)),
        }
    }

    fn question() -> Question {
        Question {
            benchmark: "write-bw".into(),
            memory: 1 << 20,
            place: place(2),
        }
    }

    #[test]
    fn hosts_have_a_port() {
        let of = |text: &str| host(text).ok();
        assert_eq!(of("node7"), Some(("node7".into(), PORT)));
        assert_eq!(of("node7:9"), Some(("node7".into(), 9)));
        assert_eq!(of("10.0.0.7"), Some(("10.0.0.7".into(), PORT)));
        assert_eq!(of("fd60::7"), Some(("fd60::7".into(), PORT)));
        assert_eq!(of("[fd60::7]:9"), Some(("fd60::7".into(), 9)));
        for wrong in ["", ":9", "node7:", "node7:0", "node7:65536", "a b", "a/b"] {
            assert_eq!(of(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn both_sides_learn_where_the_other_receives() {
        let (mut server, client) = pair();
        let mut client = Exchange::new(client, "the server".into()).expect("a socket");
        let asks = std::thread::spawn(move || client.ask(question()));
        let heard: Question = server.hear(QUESTION).expect("a question");
        assert_eq!((heard.place, heard.memory), (place(2), 1 << 20));
        assert_eq!(heard.benchmark, "write-bw");
        server.answer(place(1)).expect("it listens");
        assert_eq!(asks.join().expect("no panic").expect("an answer"), place(1));
    }

    #[test]
    fn wrong_peers_are_named_and_none_is_waited_for_for_ever() {
        let long = vec![b'x'; LINE_MAX + 9];
        let cases: [(&[u8], &str); 7] = [
            (b"SSH-2.0-OpenSSH_9.2\r\n", "it says `SSH-2.0-OpenSSH_9.2"),
            (b"{\"ringbell_perf\":2,\"place\":7}\n", "version 2"),
            (b"{\"ringbell_perf\":1}\n", "lacks what"),
            (
                b"{\"ringbell_perf\":1,\"nic\":\"10.0.0.1\",\"at\":\"x\"}\n",
                "lacks what",
            ),
            (
                b"{\"ringbell_perf\":1,\"refused\":\"not \x1b[2J today\"}\n",
                "it is no `ringbell perf`",
            ),
            (b"", "without a word"),
            (&long, "longer than"),
        ];
        for (said, wanted) in cases {
            let (mut server, mut client) = pair();
            client.write_all(said).expect("room");
            drop(client);
            let heard = server.hear::<Place>(QUESTION).expect_err("no line of ours");
            let text = format!("{heard:#}");
            assert!(text.contains(wanted), "{text}");
            assert!(!text.contains('\x1b'), "{text}");
        }
        // One that says a byte now and then, and never a whole line.
        let (mut server, mut client) = pair();
        let drips = std::thread::spawn(move || {
            while client.write_all(b"{").is_ok() {
                std::thread::sleep(Duration::from_millis(10));
            }
        });
        let start = Instant::now();
        let heard = server.hear::<Place>(Duration::from_millis(200));
        assert!(heard.is_err() && start.elapsed() < Duration::from_secs(5));
        drop(server);
        drips.join().expect("it ends with the connection");
    }
}
