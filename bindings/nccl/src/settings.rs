//! Settings, by the environment.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use ringbell::nic::{PortSpec, TransportSpec};

use crate::failure::Failure;

/// Addresses of this host, one for each device, with commas between: `192.0.2.7,198.51.100.7`.
const ADDRESSES: &str = "RINGBELL_NCCL_ADDR";
/// Speed that NCCL is told, in Mb/s.
const SPEED: &str = "RINGBELL_NCCL_SPEED";
/// Longest time until a connection is made, in seconds.
const TIMEOUT: &str = "RINGBELL_NCCL_TIMEOUT";
/// How long a peer over a network may say nothing, in seconds.
const PEER_TIMEOUT: &str = "RINGBELL_NCCL_PEER_TIMEOUT";

/// Default of [`SPEED`].
const SPEED_DEFAULT: i32 = 100_000;
const TIMEOUT_DEFAULT: f64 = 60.0;
const PEER_TIMEOUT_DEFAULT: f64 = 5.0;
/// Longest time-out of a descriptor, in seconds, rounded down.
const TIMEOUT_MAX: f64 = 4200.0;

/// How devices are opened.
#[derive(Debug)]
pub(crate) struct Settings {
    /// One for each device.
    pub(crate) ports: Vec<PortSpec>,
    pub(crate) transport: TransportSpec,
    pub(crate) speed: i32,
    pub(crate) timeout: Duration,
    /// How long a peer may acknowledge nothing before it is gone.
    pub(crate) peer_timeout: Duration,
}

fn wrong(name: &str, value: &str, what: &str) -> Failure {
    Failure::argument(format!("{name} is {value:?}; write {what}"))
}

impl Settings {
    /// Reads them; `find` gives the value of a variable.
    pub(crate) fn read(find: impl Fn(&str) -> Option<String>) -> Result<Settings, Failure> {
        let find = |name: &str| find(name).filter(|v| !v.is_empty());
        let transport = match find("RINGBELL_TRANSPORT") {
            Some(t) => TransportSpec::try_from(t.as_str())
                .map_err(|e| wrong("RINGBELL_TRANSPORT", &t, &e.to_string()))?,
            None => TransportSpec::Auto,
        };
        let speed = match find(SPEED) {
            Some(s) => match s.parse() {
                Ok(speed) if speed > 0 => speed,
                _ => return Err(wrong(SPEED, &s, "the megabits of a second, from 1 on")),
            },
            None => SPEED_DEFAULT,
        };
        let seconds = |name: &str, default: f64| match find(name) {
            Some(t) => match t.parse() {
                Ok(s) if s > 0.0 && s <= TIMEOUT_MAX => Ok(Duration::from_secs_f64(s)),
                _ => Err(wrong(name, &t, "seconds above 0, and 4200 at most")),
            },
            None => Ok(Duration::from_secs_f64(default)),
        };
        let timeout = seconds(TIMEOUT, TIMEOUT_DEFAULT)?;
        let peer_timeout = seconds(PEER_TIMEOUT, PEER_TIMEOUT_DEFAULT)?;
        let roce = |host: IpAddr| PortSpec::Roce {
            bind: Some(SocketAddr::new(host, 0)),
            peers: Vec::new(),
            mtu: None,
        };
        let ports = match (find("RINGBELL_PORT"), find(ADDRESSES)) {
            (Some(_), Some(_)) => {
                let text =
                    format!("RINGBELL_PORT and {ADDRESSES} both name ports; unset one of them");
                return Err(Failure::argument(text));
            }
            (Some(port), None) => vec![PortSpec::try_from(port.as_str())
                .map_err(|e| wrong("RINGBELL_PORT", &port, &e.to_string()))?],
            (None, Some(list)) => list
                .split(',')
                .map(|a| match a.trim().parse() {
                    Ok(host) => Ok(roce(host)),
                    Err(_) => Err(wrong(ADDRESSES, a, "addresses of this host")),
                })
                .collect::<Result<_, _>>()?,
            (None, None) if transport == TransportSpec::Local => vec![PortSpec::None],
            (None, None) => vec![default_address().map_or(PortSpec::None, roce)],
        };
        Ok(Settings {
            ports,
            transport,
            speed,
            timeout,
            peer_timeout,
        })
    }
}

/// The address of this host's default route. No packet is sent.
pub(crate) fn default_address() -> Option<IpAddr> {
    let socket = UdpSocket::bind("0.0.0.0:0").ok()?;
    // An address of documentation (RFC 5737): it is behind the default route.
    socket.connect("192.0.2.1:9").ok()?;
    Some(socket.local_addr().ok()?.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(given: &[(&str, &str)]) -> Result<Settings, Failure> {
        Settings::read(|n| Some(given.iter().find(|g| g.0 == n)?.1.to_string()))
    }

    #[test]
    fn devices_follow_addresses_and_wrong_values_are_named() {
        let two = read(&[(ADDRESSES, "127.0.0.1, ::1"), (SPEED, "400000")]).expect("sound");
        let ports: Vec<String> = two.ports.iter().map(ToString::to_string).collect();
        assert_eq!(ports, ["roce:127.0.0.1:0", "roce:[::1]:0"]);
        assert_eq!(two.speed, 400_000);
        assert_eq!(two.peer_timeout, Duration::from_secs(5));
        let patient = read(&[(PEER_TIMEOUT, "90")]).expect("sound");
        assert_eq!(patient.peer_timeout, Duration::from_secs(90));
        let local = read(&[("RINGBELL_TRANSPORT", "local")]).expect("sound");
        assert_eq!(local.ports, [PortSpec::None]);
        let named = read(&[("RINGBELL_PORT", "udp:127.0.0.1:0")]).expect("sound");
        assert_eq!(named.ports[0].to_string(), "udp:127.0.0.1:0");
        for (name, value) in [
            (ADDRESSES, "eth0"),
            (SPEED, "0"),
            (SPEED, "fast"),
            (TIMEOUT, "-1"),
            (TIMEOUT, "1e9"),
            (PEER_TIMEOUT, "never"),
            ("RINGBELL_PORT", "carrier"),
            ("RINGBELL_TRANSPORT", "pigeon"),
        ] {
            let text = read(&[(name, value)]).expect_err(name).text;
            assert!(text.contains(name) && text.contains(value), "{text}");
        }
        let both = [("RINGBELL_PORT", "none"), (ADDRESSES, "127.0.0.1")];
        assert!(read(&both).is_err());
    }
}
