//! Text forms of a NIC's attachment: `--port`, `--transport`, `--ip`.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;

/// UDP port of VXLAN, RFC 7348 §5.
pub const VXLAN_PORT: u16 = 4789;

/// The port that carries a NIC's Ethernet frames.
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
    },
    /// A TAP device of this name; needs CAP_NET_ADMIN, or a device made for this user.
    Tap(String),
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
readable!(PortSpec, TransportSpec, Cidr, crate::GpuChoice);

impl FromStr for PortSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        let (kind, rest) = text.split_once(':').unwrap_or((text, ""));
        match (kind, rest) {
            ("none", "") => Ok(PortSpec::None),
            ("mem", "") => Ok(PortSpec::Mem),
            ("tap", "") => Err(SpecError(
                "`tap` needs the name of a device; write tap:NAME, such as tap:rb0".into(),
            )),
            ("tap", name) if name.len() <= 15 && !name.contains(['/', ' ']) => {
                Ok(PortSpec::Tap(name.into()))
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
                })
            }
            _ => Err(SpecError(format!(
                "`{text}` is not a port; write none, mem, udp, udp:BIND[,PEER...] or tap:NAME"
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

impl fmt::Display for PortSpec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            PortSpec::None => f.write_str("none"),
            PortSpec::Mem => f.write_str("mem"),
            PortSpec::Udp { bind, peers } => {
                write!(f, "udp:{bind}")?;
                peers.iter().try_for_each(|p| write!(f, ",{p}"))
            }
            PortSpec::Tap(name) => write!(f, "tap:{name}"),
        }
    }
}

/// Transports that a NIC offers and tries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TransportSpec {
    /// `local` when the peer is a NIC of this host, user and network namespace, else `tcp`. `SessionInfo` of `Nic::sessions`
    /// reports a session's transport, and why.
    #[default]
    Auto,
    /// Only memory to memory on this host, also between network namespaces when both NICs say so.
    Local,
    /// Only TCP over the port.
    Tcp,
}

impl FromStr for TransportSpec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Self, SpecError> {
        match text {
            "auto" => Ok(TransportSpec::Auto),
            "local" => Ok(TransportSpec::Local),
            "tcp" => Ok(TransportSpec::Tcp),
            _ => Err(SpecError(format!(
                "`{text}` is not a transport; write auto, local or tcp"
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
                "`{text}` is not an IPv4 address; write A.B.C.D or A.B.C.D/N with N up to 32"
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
        for text in [
            "",
            "tap",
            "tap:",
            "tap:a/b",
            "tap:abcdefghijklmnop",
            "udp:x",
            "mem:1",
            "eth0",
        ] {
            assert!(text.parse::<PortSpec>().is_err(), "{text}");
        }
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
