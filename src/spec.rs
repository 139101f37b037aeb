//! Text forms of a NIC's attachment: `--port`, `--transport`, `--ip`.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, SocketAddrV6};
use std::str::FromStr;

use ringbell_mesh::POLL_MAX;
use ringbell_nic_core::network::RouteError;
use ringbell_nic_core::port::roce::{interface, DATAGRAM_MTU_MAX};
use ringbell_nic_core::port::{MTU_MAX, MTU_MIN};

/// UDP port of VXLAN, RFC 7348 §5.
pub const VXLAN_PORT: u16 = 4789;
/// UDP port of RoCEv2 (InfiniBand Architecture, annex A17).
pub(crate) const ROCE_PORT: u16 = 4791;

/// The port that carries a NIC's Ethernet frames, or the datagrams of transport `rdma` or `udp`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum PortSpec {
    /// No port: only the `local` transport, between NICs of one host and one user.
    None,
    /// In-memory switch; its other ports belong to the same process or to its children.
    Mem,
    /// Ethernet in VXLAN over a UDP socket; needs no privilege.
    Udp {
        /// Own socket address.
        bind: SocketAddr,
        /// Socket addresses of peers that are known beforehand.
        peers: Vec<SocketAddr>,
        /// IP MTU inside VXLAN; `None`: what the ways to the peers carry.
        mtu: Option<u16>,
    },
    /// Datagrams of the host's UDP, RoCEv2 of transport `rdma` or messages of transport `udp`, or
    /// with transport `iwarp` connections of the host's TCP, by the same address and port number;
    /// needs no privilege.
    Roce {
        /// An address of this host, of IPv4 or IPv6, and the UDP port. `None`: the NIC's own
        /// address at port 4791; of a rank the address towards the job's rank 0, at any free port.
        bind: Option<SocketAddr>,
        /// NICs that receive elsewhere than at their own address and port 4791. Ranks of a job
        /// learn each other's.
        peers: Vec<(Ipv4Addr, SocketAddr)>,
        /// IP MTU, up to 65,535; `None`: what the way to each peer carries.
        mtu: Option<u16>,
    },
    /// Wires to NICs that forward for each other, of a network by name or by file; the node and its
    /// wires are given by [`NicBuilder::node`](crate::NicBuilder::node) and
    /// [`NicBuilder::wire`](crate::NicBuilder::wire), or by the job.
    Mesh {
        /// A name that `ringbell routes` takes, or a file.
        topology: String,
    },
    /// A TAP device; needs CAP_NET_ADMIN, or a device made for this user.
    Tap {
        /// Its name.
        name: String,
        /// IP MTU that it gets; `None`: the one it has.
        mtu: Option<u16>,
    },
}

impl PortSpec {
    /// The port with this IP MTU, unless it names one itself. The switch of [`PortSpec::Mem`] has
    /// its own.
    pub fn or_mtu(mut self, default: Option<u16>) -> PortSpec {
        if let PortSpec::Udp { mtu, .. } | PortSpec::Roce { mtu, .. } | PortSpec::Tap { mtu, .. } =
            &mut self
        {
            *mtu = mtu.or(default);
        }
        self
    }

    /// Whether it carries Ethernet frames, which transport `tcp` needs.
    pub fn carries_frames(&self) -> bool {
        !matches!(self, PortSpec::None | PortSpec::Roce { .. })
    }

    /// An address of a host: `A.B.C.D`, `A.B.C.D:PORT`, `IPv6`, `[IPv6]`, `[IPv6]:PORT`; a
    /// link-local one with its interface, by number or name, as `fe80::1%eth0`. `port` is that of
    /// one that names none.
    ///
    /// # Errors
    /// [`SpecError`] says what is accepted.
    pub fn parse_host(text: &str, port: u16) -> Result<SocketAddr, SpecError> {
        let found = text.parse::<SocketAddr>().ok();
        let found = found.or_else(|| {
            let (inner, port) = match text.strip_prefix('[').and_then(|t| t.rsplit_once(']')) {
                Some((ip, "")) => (ip, port),
                Some((ip, rest)) => (ip, rest.strip_prefix(':')?.parse().ok()?),
                None => (text, port),
            };
            let Some((ip, interface)) = inner.split_once('%') else {
                let ip = inner.parse::<IpAddr>().ok()?;
                return Some(SocketAddr::new(ip, port));
            };
            let scope = match interface.parse() {
                Ok(number) => number,
                Err(_) => interface_number(interface)?,
            };
            Some(SocketAddrV6::new(ip.parse().ok()?, port, 0, scope).into())
        });
        found.ok_or_else(|| {
            SpecError(format!(
                "`{text}` is not an address of a host; write A.B.C.D:PORT or [IPv6]:PORT, or the address alone for port {port}; a link-local one with an interface of this host, such as [fe80::1%eth0]"
            ))
        })
    }

    /// An IP MTU that a port can have.
    ///
    /// # Errors
    /// [`SpecError`] names the range.
    pub fn parse_mtu(text: &str) -> Result<u16, SpecError> {
        match text.parse::<u16>() {
            Ok(mtu) if (MTU_MIN..=DATAGRAM_MTU_MAX).contains(&usize::from(mtu)) => Ok(mtu),
            _ => Err(SpecError(format!(
                "`{text}` is not an MTU; write a number of bytes from {MTU_MIN} to {MTU_MAX}, or to {DATAGRAM_MTU_MAX} for port roce"
            ))),
        }
    }
}

/// A text that names no port, transport or address; the message lists the valid forms.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SpecError(String);

impl SpecError {
    pub(crate) fn new(message: String) -> SpecError {
        SpecError(message)
    }
}

impl From<std::convert::Infallible> for SpecError {
    fn from(none: std::convert::Infallible) -> SpecError {
        match none {}
    }
}

/// Lets a setting take text where it takes the value.
macro_rules! readable {
    ($($ty:ty),+) => {
        $(
            impl TryFrom<&str> for $ty {
                type Error = SpecError;

                fn try_from(text: &str) -> Result<Self, SpecError> {
                    text.parse()
                }
            }

            impl TryFrom<String> for $ty {
                type Error = SpecError;

                fn try_from(text: String) -> Result<Self, SpecError> {
                    text.parse()
                }
            }
        )+
    };
}
#[allow(unused_imports)] // The fuzz target of texts takes this file alone.
pub(crate) use readable;
readable!(PortSpec, TransportSpec, Cidr);

impl From<RouteError> for SpecError {
    fn from(why: RouteError) -> SpecError {
        SpecError::new(why.to_string())
    }
}

impl FromStr for PortSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let (name, mtu) = match text.rsplit_once(",mtu=") {
            Some((name, mtu)) => (name, Some(PortSpec::parse_mtu(mtu)?)),
            None => (text, None),
        };
        let (kind, rest) = name.split_once(':').unwrap_or((name, ""));
        if let (true, Some(mtu)) = (kind != "roce", mtu.filter(|m| usize::from(*m) > MTU_MAX)) {
            return Err(SpecError(format!(
                "the MTU of port {kind} is at most {MTU_MAX}, not {mtu}"
            )));
        }
        match (kind, rest) {
            ("none" | "mem", "") if mtu.is_some() => Err(SpecError(format!(
                "port {kind} has no `mtu=` of its own; the switch of port mem gets one when it is made"
            ))),
            ("none", "") => Ok(PortSpec::None),
            ("mem", "") => Ok(PortSpec::Mem),
            ("mesh", "") => Err(SpecError(
                "`mesh` needs a network; write mesh:NETWORK with a name or a file of `ringbell routes`, such as mesh:torus:2x4".into(),
            )),
            ("mesh", _) if mtu.is_some() => Err(SpecError(
                "port mesh has no `mtu=` of its own; it carries what its wires carry".into(),
            )),
            ("mesh", topology) => Ok(PortSpec::Mesh {
                topology: topology.into(),
            }),
            ("tap", "") => Err(SpecError(
                "`tap` needs the name of a device; write tap:NAME, such as tap:rb0".into(),
            )),
            ("tap", name) if name.len() <= 15 && !name.contains(['/', ' ']) => {
                let name = name.into();
                Ok(PortSpec::Tap { name, mtu })
            }
            ("tap", name) => Err(SpecError(format!(
                "`{name}` cannot name a network device: at most 15 characters, no slash, no space"
            ))),
            ("udp", list) => {
                let mut addresses = list.split(',').filter(|s| !s.is_empty()).map(udp_address);
                let bind = addresses
                    .next()
                    .unwrap_or_else(|| Ok(SocketAddr::from((Ipv4Addr::UNSPECIFIED, VXLAN_PORT))))?;
                Ok(PortSpec::Udp {
                    bind,
                    peers: addresses.collect::<Result<_, _>>()?,
                    mtu,
                })
            }
            ("roce", list) => {
                let mut bind = None;
                let mut peers = Vec::new();
                for (n, part) in list.split(',').filter(|s| !s.is_empty()).enumerate() {
                    match part.split_once('=') {
                        Some((nic, at)) => {
                            let ip = nic.parse().map_err(|_| {
                                SpecError(format!("`{nic}` is not the address of a NIC; write NIC=ADDR:PORT with a NIC of A.B.C.D and a host's address of A.B.C.D or [IPv6]"))
                            })?;
                            peers.push((ip, PortSpec::parse_host(at, ROCE_PORT)?));
                        }
                        None if n == 0 => bind = Some(PortSpec::parse_host(part, ROCE_PORT)?),
                        None => {
                            return Err(SpecError(format!(
                                "`{part}` names no NIC; write NIC=ADDR:PORT for one that receives at another address than its own"
                            )))
                        }
                    }
                }
                // The host reaches one version of IP by one socket.
                let is_other = |at: &SocketAddr| bind.is_some_and(|b| b.is_ipv6() != at.is_ipv6());
                if let Some((nic, at)) = peers.iter().find(|(_, at)| is_other(at)) {
                    return Err(SpecError(format!(
                        "{nic} receives at {at}, which a port of the other version of IP does not reach; write both addresses as A.B.C.D or both as [IPv6]"
                    )));
                }
                Ok(PortSpec::Roce { bind, peers, mtu })
            }
            _ => Err(SpecError(format!(
                "`{text}` is not a port; write none, mem, udp, udp:BIND[,PEER...][,mtu=BYTES], roce, roce:ADDR[:PORT][,NIC=ADDR:PORT...][,mtu=BYTES] with ADDR of A.B.C.D or [IPv6], mesh:NETWORK, or tap:NAME[,mtu=BYTES]"
            ))),
        }
    }
}

fn udp_address(text: &str) -> Result<SocketAddr, SpecError> {
    if let Ok(address) = text.parse() {
        return Ok(address);
    }
    if let Ok(ip) = text.parse::<Ipv4Addr>() {
        return Ok(SocketAddr::from((ip, VXLAN_PORT)));
    }
    Err(SpecError(format!(
        "`{text}` is not a socket address; write A.B.C.D:PORT, or A.B.C.D for port {VXLAN_PORT}"
    )))
}

/// The number of an interface, where its name can be one.
fn interface_number(name: &str) -> Option<u32> {
    let is_name = (1..16).contains(&name.len()) && !name.contains(['/', '\0']);
    is_name.then(|| interface(name).ok()).flatten()
}

impl fmt::Display for PortSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mtu = match self {
            PortSpec::None => return f.write_str("none"),
            PortSpec::Mem => return f.write_str("mem"),
            PortSpec::Udp { bind, peers, mtu } => {
                write!(f, "udp:{bind}")?;
                peers.iter().try_for_each(|p| write!(f, ",{p}"))?;
                mtu
            }
            PortSpec::Roce { bind, peers, mtu } => {
                let bind = bind.iter().map(SocketAddr::to_string);
                let peers = peers.iter().map(|(nic, at)| format!("{nic}={at}"));
                let parts: Vec<String> = bind.chain(peers).collect();
                let colon = if parts.is_empty() { "" } else { ":" };
                write!(f, "roce{colon}{}", parts.join(","))?;
                mtu
            }
            PortSpec::Mesh { topology } => return write!(f, "mesh:{topology}"),
            PortSpec::Tap { name, mtu } => {
                write!(f, "tap:{name}")?;
                mtu
            }
        };
        mtu.iter().try_for_each(|mtu| write!(f, ",mtu={mtu}"))
    }
}

/// Transports that a NIC offers and tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TransportSpec {
    /// `local` when the peer is a NIC of this host, user and network namespace, else what its port
    /// is best at: over port roce `rdma` to a peer of this host and `iwarp` to one of another, and
    /// either in the other's place if the peer lacks that; `rdma` over port mesh, which has no
    /// `local` beside it; `tcp` over other ports of frames.
    /// `SessionInfo` of `Nic::sessions` reports a session's transport, and why.
    #[default]
    Auto,
    /// Only memory to memory on this host, also between network namespaces when both NICs say so.
    Local,
    /// Only TCP over the port.
    Tcp,
    /// Only RDMA over the port: RoCEv2, between NICs of this kind.
    Rdma,
    /// Only plain UDP over the port, as ACCL has it: nothing is sent twice, and a lost packet ends
    /// the session. Never chosen by `auto`.
    Udp,
    /// Only iWARP over the kernel's TCP, by the address of a port roce.
    Iwarp,
}

impl TransportSpec {
    /// Whether it was named, and cannot do without a port.
    pub const fn needs_port(self) -> bool {
        matches!(
            self,
            TransportSpec::Tcp | TransportSpec::Rdma | TransportSpec::Udp | TransportSpec::Iwarp
        )
    }

    /// The port that carries it between NICs of one host, where none was named.
    pub const fn port_on_one_host(self) -> PortSpec {
        match self {
            TransportSpec::Auto | TransportSpec::Local => PortSpec::None,
            TransportSpec::Tcp | TransportSpec::Rdma | TransportSpec::Udp => PortSpec::Mem,
            TransportSpec::Iwarp => PortSpec::Roce {
                bind: None,
                peers: Vec::new(),
                mtu: None,
            },
        }
    }
}

impl FromStr for TransportSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        match text {
            "auto" => Ok(TransportSpec::Auto),
            "local" => Ok(TransportSpec::Local),
            "tcp" => Ok(TransportSpec::Tcp),
            "rdma" => Ok(TransportSpec::Rdma),
            "udp" => Ok(TransportSpec::Udp),
            "iwarp" => Ok(TransportSpec::Iwarp),
            _ => Err(SpecError(format!(
                "`{text}` is not a transport; write auto, local, tcp, rdma, udp or iwarp"
            ))),
        }
    }
}

impl fmt::Display for TransportSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            TransportSpec::Auto => "auto",
            TransportSpec::Local => "local",
            TransportSpec::Tcp => "tcp",
            TransportSpec::Rdma => "rdma",
            TransportSpec::Udp => "udp",
            TransportSpec::Iwarp => "iwarp",
        })
    }
}

/// An IPv4 address with the length of its network's prefix: `10.77.0.1/24`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cidr {
    /// The address.
    pub ip: Ipv4Addr,
    /// Bits of the network, 0 to 32.
    pub prefix: u8,
}

impl FromStr for Cidr {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let bad = || {
            SpecError(format!(
                "`{text}` is not the IPv4 address of a NIC; write A.B.C.D or A.B.C.D/N with N up to 32 (an IPv6 address is that of a port: --port roce:[ADDR])"
            ))
        };
        let (ip, prefix) = text.split_once('/').unwrap_or((text, "24"));
        let cidr = Cidr {
            ip: ip.parse().map_err(|_| bad())?,
            prefix: prefix.parse().map_err(|_| bad())?,
        };
        if cidr.prefix > 32 {
            return Err(bad());
        }
        Ok(cidr)
    }
}

impl fmt::Display for Cidr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.ip, self.prefix)
    }
}

/// R, the packets that an output takes from one queue in a row.
pub(crate) fn polls(packets: u32) -> Result<u32, SpecError> {
    match (1..=POLL_MAX).contains(&packets) {
        true => Ok(packets),
        false => Err(SpecError::new(format!(
            "{packets} packets from one queue in a row; give 1 to {POLL_MAX}"
        ))),
    }
}

/// The same, of a job's variable.
pub(crate) fn read_polls(text: &str) -> Result<u32, SpecError> {
    let number = text.parse().map_err(|_| {
        SpecError::new(format!(
            "`{text}` is no number; give 1 to {POLL_MAX} packets"
        ))
    })?;
    polls(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_round_trip() {
        for text in [
            "none",
            "mem",
            "tap:rb0",
            "udp:0.0.0.0:4789",
            "udp:127.0.0.1:5000,127.0.0.1:5001",
            "udp:127.0.0.1:5000,127.0.0.1:5001,mtu=9000",
            "tap:rb0,mtu=576",
            "roce",
            "roce,mtu=65535",
            "roce:127.0.0.1:0",
            "roce:127.0.0.1:5000,10.0.0.2=127.0.0.1:5001,10.0.0.3=127.0.0.1:5002,mtu=4144",
            "roce:10.0.0.2=127.0.0.1:5001",
            "roce:[::1]:0",
            "roce:[fe80::1%7]:4791",
            "roce:[fd00::1]:4791,10.0.0.2=[fd00::2]:5001,mtu=4164",
        ] {
            assert_eq!(
                text.parse::<PortSpec>().map(|p| p.to_string()).as_deref(),
                Ok(text)
            );
        }
        assert_eq!(
            "udp".parse::<PortSpec>().map(|p| p.to_string()).as_deref(),
            Ok("udp:0.0.0.0:4789")
        );
        assert_eq!(
            "roce:10.0.0.1".parse::<PortSpec>().map(|p| p.to_string()),
            Ok("roce:10.0.0.1:4791".into())
        );
        for (short, whole) in [
            ("roce:[::1]", "roce:[::1]:4791"),
            ("roce:::1", "roce:[::1]:4791"),
            ("roce:fd00::1,mtu=1500", "roce:[fd00::1]:4791,mtu=1500"),
            ("roce:[fe80::1%3]", "roce:[fe80::1%3]:4791"),
            ("roce:[fe80::1%lo]:9", "roce:[fe80::1%1]:9"),
        ] {
            let read = short.parse::<PortSpec>().map(|p| p.to_string());
            assert_eq!(read.as_deref(), Ok(whole));
        }
        let refused = "roce:[::1]x".parse::<PortSpec>().expect_err("no address");
        assert!(refused.to_string().contains("[IPv6]:PORT"), "{refused}");
        for text in [
            "",
            "roce:x",
            "roce:10.0.0.1,10.0.0.2",
            "roce:[::1",
            "roce:[::1]4791",
            "roce:[::1]:",
            "roce:[::1]:65536",
            "roce:[127.0.0.1%lo]",
            "roce:[fe80::1%]",
            "roce:[fe80::1%no/such]",
            "roce:[fe80::1%no-such-one]",
            "roce:[fe80::1%4294967296]",
            "roce:[::1]:1,10.0.0.2=127.0.0.1:2",
            "roce:[::1]:1,fd00::2=[::1]:2",
            "roce:10.0.0.1,x=10.0.0.2:1",
            "roce,mtu=65536",
            "tap",
            "tap:",
            "tap:a/b",
            "tap:abcdefghijklmnop",
            "udp:x",
            "mem:1",
            "mem,mtu=1500",
            "udp:127.0.0.1:5000,mtu=0",
            "udp:127.0.0.1:5000,mtu=575",
            "udp:127.0.0.1:5000,mtu=9217",
            "udp:127.0.0.1:5000,mtu=1500,127.0.0.1:5001",
            "tap:rb0,mtu=x",
            "eth0",
        ] {
            assert!(text.parse::<PortSpec>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_ports_own_mtu_comes_before_the_commands() {
        let of = |text: &str| {
            let port = text.parse::<PortSpec>().map(|p| p.or_mtu(Some(1400)));
            port.map(|p| p.to_string())
        };
        assert_eq!(of("tap:a").as_deref(), Ok("tap:a,mtu=1400"));
        assert_eq!(of("tap:a,mtu=900").as_deref(), Ok("tap:a,mtu=900"));
        assert_eq!(of("mem").as_deref(), Ok("mem"));
    }

    #[test]
    fn addresses() {
        assert_eq!(
            "10.1.2.3".parse::<Cidr>().map(|c| c.to_string()).as_deref(),
            Ok("10.1.2.3/24")
        );
        for text in ["", "10.1.2", "10.1.2.3/33", "10.1.2.3/", "::1"] {
            assert!(text.parse::<Cidr>().is_err(), "{text}");
        }
    }
}
