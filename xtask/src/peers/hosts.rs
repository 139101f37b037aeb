//! Hosts of a measurement between several: network namespaces joined by a bridge, one for each
//! rank. They end with this process.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{bail, Context, Result};
use fs_err as fs;

use crate::steps::{command, Words as _};
use crate::tools;

/// The bridge's own address.
const HUB: &str = "10.60.0.254";

/// The namespaces: the bridge's, then one for each rank.
pub(super) struct Hosts {
    holders: Vec<Child>,
    dir: PathBuf,
}

/// How Open MPI's launcher reaches the namespaces.
pub(super) struct OpenMpi {
    hub: u32,
    enter: PathBuf,
}

/// A command in the namespace of a process.
fn within(pid: u32, program: &Path) -> Command {
    let mut c = Command::new("nsenter");
    c.args(["-t", &pid.to_string(), "-n", "--"]).arg(program);
    c
}

fn ip(pid: u32, args: &str) -> Result<()> {
    let mut ip = within(pid, Path::new("ip"));
    command(ip.words(args)).context("the tool `ip` is in Debian's iproute2")
}

impl Hosts {
    /// # Errors
    /// Without root, or where namespaces or bridges are missing.
    pub(super) fn new(ranks: u32, dir: &Path) -> Result<Hosts> {
        if !tools::is_root() {
            bail!("network namespaces on a bridge need root here; run `sudo -E cargo xtask peers --hosts`, or leave --hosts away");
        }
        let mut hosts = Hosts {
            holders: Vec::new(),
            dir: dir.into(),
        };
        for _ in 0..=ranks {
            let mut holder = Command::new("unshare");
            holder.args(["-n", "cat"]).stdin(Stdio::piped());
            let holder = holder.stdout(Stdio::null()).spawn();
            let holder = holder.context("the tool `unshare` is in Debian's util-linux")?;
            hosts.holders.push(holder);
        }
        for n in 0..=ranks as usize {
            hosts.settled(n)?;
        }
        let hub = hosts.pid(0);
        ip(hub, "link set lo up")?;
        ip(hub, "link add hub type bridge")?;
        ip(hub, &format!("addr add {HUB}/24 dev hub"))?;
        ip(hub, "link set hub up")?;
        for n in 1..=ranks {
            let pid = hosts.pid(n as usize);
            ip(
                hub,
                &format!("link add port{n} type veth peer name cable netns {pid}"),
            )?;
            ip(hub, &format!("link set port{n} master hub up"))?;
            ip(pid, &format!("addr add 10.60.0.{n}/24 dev cable"))?;
            ip(pid, "link set cable up")?;
            ip(pid, "link set lo up")?;
        }
        Ok(hosts)
    }

    fn pid(&self, n: usize) -> u32 {
        self.holders[n].id()
    }

    /// Waits until a holder is in a namespace of its own.
    fn settled(&self, n: usize) -> Result<()> {
        let net = |pid: &str| std::fs::read_link(format!("/proc/{pid}/ns/net")).ok();
        let pid = self.pid(n).to_string();
        for _ in 0..500 {
            if net(&pid).is_some_and(|held| Some(held) != net("self")) {
                return Ok(());
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        bail!("`unshare -n` makes no network namespace here");
    }

    /// Ringbell's ranks, which meet at the first one's address and learn all else there.
    ///
    /// # Errors
    /// Without random numbers for the job's secret.
    pub(super) fn ranks(&self, program: &Path) -> Result<Vec<Command>> {
        let mut secret = [0; 16];
        let mut random = fs::File::open("/dev/urandom")?;
        std::io::Read::read_exact(&mut random, &mut secret)?;
        let secret: String = secret.iter().map(|b| format!("{b:02x}")).collect();
        let count = self.holders.len() - 1;
        let rank = |n: usize| {
            let mut c = within(self.pid(n + 1), program);
            c.env("PMI_RANK", n.to_string())
                .env("PMI_SIZE", count.to_string())
                .env("RINGBELL_BOOTSTRAP", "10.60.0.1:18600")
                .env("RINGBELL_SECRET", &secret);
            c
        };
        Ok((0..count).map(rank).collect())
    }

    /// Open MPI's launcher runs beside the bridge. Its ranks are told their number there, and go to
    /// their namespaces by a script.
    ///
    /// # Errors
    /// The script cannot be written.
    pub(super) fn open_mpi(&self) -> Result<OpenMpi> {
        let enter = self.dir.join("enter.sh");
        let mut text = "case $OMPI_COMM_WORLD_RANK in\n".to_owned();
        for (rank, holder) in self.holders[1..].iter().enumerate() {
            text += &format!("{rank}) pid={} ;;\n", holder.id());
        }
        text += "esac\nexec nsenter -t $pid -n -- \"$@\"\n";
        fs::write(&enter, text)?;
        Ok(OpenMpi {
            hub: self.pid(0),
            enter,
        })
    }
}

impl OpenMpi {
    /// The launcher, beside the bridge.
    pub(super) fn command(&self, mpirun: &Path) -> Command {
        let mut c = within(self.hub, mpirun);
        // Its ranks reach it at the bridge's address, not on a loopback.
        c.env("PMIX_MCA_ptl_base_if_include", "hub");
        c
    }

    /// Flags before the program.
    pub(super) fn flags(&self) -> Vec<String> {
        let flags = "--pmixmca ptl_base_if_include hub --mca btl_tcp_if_include cable sh";
        let flags = flags.split(' ').map(String::from);
        flags.chain([self.enter.display().to_string()]).collect()
    }
}

impl Drop for Hosts {
    fn drop(&mut self) {
        for holder in &mut self.holders {
            let _ = holder.kill();
            let _ = holder.wait();
        }
    }
}
