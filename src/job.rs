//! Ranks of a job: how they find each other, and the settings of a rank's NIC: its address, network
//! and secrets, derived from the job's id.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

pub use ringbell_job::{
    variables, BootstrapError, BootstrapServer, Job, JobError, JobSource, Member, Round, UniqueId,
    UniqueIdError,
};

use crate::nic::{Cidr, PortSpec};
use crate::open_error::OpenError;
use crate::spec::read_polls;
use crate::{wires, NicBuilder};

/// Address of a rank's NIC: 10.77.0.1 for rank 0, and so on.
pub fn address_of(rank: u32) -> Cidr {
    let [_, _, c, d] = (rank + 1).to_be_bytes();
    Cidr {
        ip: Ipv4Addr::new(10, 77, c, d),
        prefix: 16,
    }
}

/// Network identifier and secret of a job's ports `udp`.
pub fn tunnel_of(id: &UniqueId) -> (u32, u64) {
    let word = |purpose| {
        let bytes = id.derived(purpose);
        bytes[..8].iter().fold(0, |w, b| w << 8 | u64::from(*b))
    };
    (word("network") as u32 & 0xff_ffff, word("udp"))
}

impl NicBuilder {
    /// The settings of this process's rank: an address by rank, and a directory, a network number
    /// and secrets of the job's own, so that two jobs on one machine never meet; port, transport
    /// and switch as the launcher says. Where it names no port and the job's bootstrap is no
    /// address of the loopback, the port is `roce`: ranks of one host use memory, others iWARP.
    /// Later settings override it.
    ///
    /// ```no_run
    /// use ringbell::{Job, Nic};
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let job = Job::from_env()?;
    /// let nic = Nic::builder().job(&job).open()?;
    /// println!("rank {} of {}, started by {}", job.rank(), job.size(), job.source());
    /// # Ok(()) }
    /// ```
    ///
    /// [`open`](NicBuilder::open) fails when the launcher names a port, a transport or a switch
    /// that cannot be used.
    pub fn job(self, job: &Job) -> NicBuilder {
        let mut builder = self.rank(job.id(), job.rank());
        builder.options.host = towards(job.id().address());
        if let Some(transport) = job.transport() {
            if let Some(transport) = builder.read("RINGBELL_TRANSPORT", transport) {
                builder.options.transport = transport;
            }
        }
        match job.port() {
            Some(port) => {
                if let Some(port) = builder.read("RINGBELL_PORT", port) {
                    builder.options.port = port;
                }
            }
            // Ranks may be on several hosts, which memory does not connect.
            None if is_far(job) && builder.options.host.is_some() => {
                builder.options.port = ROCE;
            }
            None => {}
        }
        if let Some(path) = job.switch() {
            match wires::attach(path) {
                Ok(switch) => builder.options.switch = Some((switch, job.rank() as usize)),
                Err(why) => drop(builder.wrong.get_or_insert(why)),
            }
        }
        if let Some(tables) = job.routes() {
            builder.options.mesh.tables = Some(tables.into());
            // One is enough: what it has replaced, all have.
            builder.options.mesh.is_followed = job.rank() == 0;
        }
        if let Some(text) = job.wire_poll() {
            match read_polls(text) {
                Ok(packets) => builder.options.mesh.poll = Some(packets),
                Err(why) => {
                    let setting = variables::WIRE_POLL;
                    builder
                        .wrong
                        .get_or_insert(OpenError::Setting { setting, why });
                }
            }
        }
        match job.wires() {
            Some(text) => wires::apply(builder, variables::WIRES, text),
            None => builder,
        }
    }

    /// As [`job`](NicBuilder::job), for a new rank of a running job ([`Member::join_running`]). The
    /// variable RINGBELL_TRANSPORT counts; where the bootstrap is no address of the loopback, the
    /// port is `roce`.
    pub fn member(self, member: &Member) -> NicBuilder {
        let mut builder = self.rank(member.id(), member.rank());
        builder.options.host = towards(member.id().address());
        if let Ok(transport) = std::env::var(variables::TRANSPORT) {
            if let Some(transport) = builder.read("RINGBELL_TRANSPORT", &*transport) {
                builder.options.transport = transport;
            }
        }
        if !member.id().address().ip().is_loopback() && builder.options.host.is_some() {
            builder.options.port = ROCE;
        }
        builder
    }

    /// As [`job`](NicBuilder::job), for a rank that no launcher started; only the job's ranks can
    /// connect to it.
    pub fn rank(mut self, id: &UniqueId, rank: u32) -> NicBuilder {
        let options = &mut self.options;
        options.ip = address_of(rank);
        options.mesh.node = rank;
        // Public values (the directory's name, the network's number in each frame) reveal nothing
        // of the secrets.
        let (vni, secret) = tunnel_of(id);
        options.vni = vni;
        options.udp_secret = Some(secret);
        options.local.directory = Some(id.local_directory());
        options.local.secret = id.derived("local");
        self
    }
}

/// The port of ranks of several hosts.
const ROCE: PortSpec = PortSpec::Roce {
    bind: None,
    peers: Vec::new(),
    mtu: None,
};

/// Whether ranks of other hosts can be in the job.
fn is_far(job: &Job) -> bool {
    job.source() != JobSource::Ringbell && !job.id().address().ip().is_loopback()
}

/// The address of this host from which it reaches another, with port 0. No packet is sent.
fn towards(other: SocketAddr) -> Option<SocketAddr> {
    let any: SocketAddr = match other {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any).ok()?;
    socket.connect(other).ok()?;
    let mut own = socket.local_addr().ok()?;
    own.set_port(0);
    Some(own)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Nic;

    const ID: &str = "rb1-000102030405060708090a0b0c0d0e0f@127.0.0.1:4711";

    #[test]
    fn a_launchers_nic_variables_are_applied_or_refused() {
        let job = |name: &'static str, value: &'static str| {
            let given = [
                ("RINGBELL_RANK", "1"),
                ("RINGBELL_SIZE", "2"),
                ("RINGBELL_ID", ID),
                (name, value),
            ];
            let find = |n: &str| Some(given.iter().find(|v| v.0 == n)?.1.to_owned());
            Nic::builder().job(&Job::from_variables(&find).expect("a rank"))
        };
        let udp = job("RINGBELL_PORT", "udp:127.0.0.1:0");
        assert_eq!(udp.options.port.to_string(), "udp:127.0.0.1:0");
        for (name, value) in [
            ("RINGBELL_PORT", "carrier"),
            ("RINGBELL_TRANSPORT", "pigeon"),
            ("RINGBELL_SWITCH", "/no/such/switch"),
            ("RINGBELL_WIRES", "first=mem:/a:0"),
            ("RINGBELL_WIRE_POLL", "often"),
            ("RINGBELL_WIRE_POLL", "0"),
        ] {
            let e = job(name, value).open().expect_err(name).to_string();
            assert!(e.contains(value), "{e}");
        }
        for (wires, why) in [
            (
                "0=mem:/no/such/switch:1",
                "launcher's switch at /no/such/switch",
            ),
            ("0=roce:here", "setting wire: `here`"),
        ] {
            let e = job("RINGBELL_WIRES", wires)
                .open()
                .expect_err(wires)
                .to_string();
            assert!(e.contains(why), "{e}");
        }
    }

    #[test]
    fn ranks_of_several_hosts_have_a_port_without_being_told() {
        let port = |bootstrap: &'static str, port: &'static str| {
            let given = [
                ("PMI_RANK", "0"),
                ("PMI_SIZE", "2"),
                ("RINGBELL_SECRET", "000102030405060708090a0b0c0d0e0f"),
                ("RINGBELL_BOOTSTRAP", bootstrap),
                ("RINGBELL_PORT", port),
            ];
            let find = |n: &str| Some(given.iter().find(|v| v.0 == n)?.1.to_owned());
            let job = Job::from_variables(&find).expect("a rank");
            Nic::builder().job(&job).options.port.to_string()
        };
        assert_eq!(port("127.0.0.1:5000", ""), "none");
        assert_eq!(port("192.0.2.1:5000", "none"), "none");
        // A host without any route has no address for it either.
        let routed = towards(([192, 0, 2, 1], 5000).into()).is_some();
        assert_eq!(port("192.0.2.1:5000", "") == "roce", routed);
        assert_eq!(port("[::1]:5000", ""), "none");
        let routed = towards(([0x2001, 0xdb8, 0, 0, 0, 0, 0, 1], 5000).into()).is_some();
        assert_eq!(port("[2001:db8::1]:5000", "") == "roce", routed);
        if let Some(own) = towards((Ipv6Addr::LOCALHOST, 5000).into()) {
            assert_eq!(own, (Ipv6Addr::LOCALHOST, 0).into());
        }
    }

    #[test]
    fn addresses_differ_by_rank_and_directories_by_job() {
        assert_eq!(address_of(0).to_string(), "10.77.0.1/16");
        assert_eq!(address_of(255).to_string(), "10.77.1.0/16");
        let id: UniqueId = ID.parse().expect("sound");
        let other = UniqueId::new(id.address(), [3; 16]);
        assert_ne!(id.local_directory(), other.local_directory());
        let options = Nic::builder().rank(&id, 3).options;
        assert_eq!(options.ip.ip, Ipv4Addr::new(10, 77, 0, 4));
        // Every user can see the directory's name, and every host on the wire the network's number.
        let shown = format!("{}{:x}", id.local_directory().display(), options.vni);
        let udp = options.udp_secret.expect("one");
        assert!(!shown.contains(&format!("{udp:016x}")), "{shown}");
        assert_ne!(options.local.secret[..16], *id.secret());
        assert_ne!(Nic::builder().rank(&other, 3).options.udp_secret, Some(udp));
        assert!(!id
            .local_directory()
            .to_string_lossy()
            .contains("0001020304"));
    }
}
