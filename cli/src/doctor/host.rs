//! Checks of the host: devices, rights, memory, cores.

use std::path::{Path, PathBuf};

use rustix::process::{getrlimit, Resource};

use super::check::{Check, Verdict};
use crate::report::{machine, ranges, size_text};

/// CAP_NET_ADMIN: make network devices (linux/capability.h).
const CAP_NET_ADMIN: u32 = 12;
/// CAP_NET_RAW: raw sockets.
const CAP_NET_RAW: u32 = 13;

/// All checks of the host.
pub(super) fn checks() -> Vec<Check> {
    vec![
        tap(),
        raw_sockets(),
        udp(),
        tcp(),
        cores(),
        cpu_features(),
        huge_pages(),
        memlock(),
        mappings(),
        memfd(),
        peer_memory(),
        socket_dir(),
    ]
}

fn read(path: &str) -> Option<String> {
    Some(std::fs::read_to_string(path).ok()?.trim().to_string())
}

/// Whether the effective capabilities hold this one.
fn has_capability(number: u32) -> bool {
    read("/proc/self/status")
        .and_then(|status| capabilities(&status))
        .is_some_and(|set| set >> number & 1 == 1)
}

/// The `CapEff:` line of /proc/self/status.
fn capabilities(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|l| l.strip_prefix("CapEff:"))?;
    u64::from_str_radix(line.trim(), 16).ok()
}

fn tap() -> Check {
    let found = match (
        Path::new("/dev/net/tun").exists(),
        has_capability(CAP_NET_ADMIN),
    ) {
        (true, true) => {
            return Check::new(
                "TAP",
                Verdict::Ok,
                "/dev/net/tun, CAP_NET_ADMIN",
                "--port tap:NAME",
                "the NIC talks to this host's own TCP stack and to any program on it",
            )
        }
        (true, false) => "/dev/net/tun, but no CAP_NET_ADMIN",
        (false, _) => "no /dev/net/tun",
    };
    Check::new(
        "TAP",
        Verdict::Instead,
        found,
        "--port udp or mem",
        "root (or a device that root made for you: ip tuntap add NAME mode tap user $USER) allows --port tap:NAME",
    )
}

fn raw_sockets() -> Check {
    if has_capability(CAP_NET_RAW) {
        Check::new(
            "raw sockets",
            Verdict::Ok,
            "CAP_NET_RAW",
            "nothing needs them yet",
            "no port of this version uses AF_PACKET; --port udp works without any right",
        )
    } else {
        Check::new(
            "raw sockets",
            Verdict::Instead,
            "no CAP_NET_RAW",
            "--port udp",
            "VXLAN frames over an ordinary UDP socket need no right",
        )
    }
}

fn udp() -> Check {
    match std::net::UdpSocket::bind("127.0.0.1:0") {
        Ok(_) => Check::new(
            "UDP sockets",
            Verdict::Ok,
            "can be opened",
            "--port udp",
            "NICs of several machines meet over them",
        ),
        Err(error) => Check::new(
            "UDP sockets",
            Verdict::Instead,
            format!("cannot be opened: {error}"),
            "--port mem",
            "NICs of this host still meet; check the sandbox that this process runs in",
        ),
    }
}

fn tcp() -> Check {
    match std::net::TcpListener::bind("127.0.0.1:0") {
        Ok(_) => Check::new(
            "TCP sockets",
            Verdict::Ok,
            "can listen",
            "--port roce --transport iwarp",
            "sessions over the kernel's TCP pass NAT and firewalls",
        ),
        Err(error) => Check::new(
            "TCP sockets",
            Verdict::Instead,
            format!("cannot listen: {error}"),
            "--port udp",
            "NICs meet over UDP; check the sandbox that this process runs in",
        ),
    }
}

fn cores() -> Check {
    let cores = machine::cores();
    let online = std::thread::available_parallelism().map_or(1, |n| n.get());
    let found = format!("{} usable: {}", cores.len(), ranges(cores.iter().copied()));
    if cores.len() >= 2 {
        Check::new(
            "cores",
            Verdict::Ok,
            found,
            "waiters spin, then yield, then park",
            format!("the thread that waits steps the NIC; {online} thread(s) run at once"),
        )
    } else {
        Check::new(
            "cores",
            Verdict::Instead,
            found,
            "waiters yield at once",
            "both ends share a core, so spinning would keep the peer from running; taskset may have narrowed the set",
        )
    }
}

fn cpu_features() -> Check {
    #[cfg(target_arch = "x86_64")]
    let found: Vec<&str> = [
        ("SSE2", true),
        ("AVX2", std::is_x86_feature_detected!("avx2")),
        ("AVX-512F", std::is_x86_feature_detected!("avx512f")),
    ]
    .into_iter()
    .filter_map(|(name, there)| there.then_some(name))
    .collect();
    #[cfg(not(target_arch = "x86_64"))]
    let found: Vec<&str> = vec![std::env::consts::ARCH];
    Check::new(
        "CPU features",
        Verdict::Ok,
        found.join(", "),
        "libc's memcpy; non-temporal stores for large copies",
        "memcpy picks the widest stores of this processor at run time; a large copy out of place does not read its destination first",
    )
}

fn huge_pages() -> Check {
    let meminfo = read("/proc/meminfo").unwrap_or_default();
    let pool = meminfo_number(&meminfo, "HugePages_Total").unwrap_or(0);
    let shmem = read("/sys/kernel/mm/transparent_hugepage/shmem_enabled").unwrap_or_default();
    let transparent = shmem
        .split('[')
        .nth(1)
        .and_then(|s| s.split(']').next())
        .unwrap_or("not supported")
        .to_string();
    Check::new(
        "huge pages",
        Verdict::Instead,
        format!("pool of {pool}; transparent for shared memory: {transparent}"),
        "64 KiB emulated GPU pages on 4 KiB host pages",
        "pages of the emulated GPU are scattered one by one, so host pages cannot be larger",
    )
}

fn meminfo_number(meminfo: &str, key: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|l| l.strip_prefix(key)?.strip_prefix(':'))?;
    line.split_whitespace().next()?.parse().ok()
}

fn memlock() -> Check {
    let limit = getrlimit(Resource::Memlock).current;
    Check::new(
        "locked memory",
        Verdict::Ok,
        limit.map_or("no limit".into(), |l| format!("at most {}", size_text(l))),
        "nothing is locked",
        "registered memory is populated and held by a memfd; a software NIC needs no locked pages",
    )
}

fn mappings() -> Check {
    let limit = read("/proc/sys/vm/max_map_count").and_then(|t| t.parse::<u64>().ok());
    let found = limit.map_or("unknown".into(), |l| {
        format!("at most {l} for each process")
    });
    if limit.is_some_and(|l| l < 65_530) {
        Check::new(
            "memory mappings",
            Verdict::Instead,
            found,
            "fewer scattered GPU pages",
            "each scattered 64 KiB page of the emulated GPU is a mapping; raise sysctl vm.max_map_count to 65530",
        )
    } else {
        Check::new(
            "memory mappings",
            Verdict::Ok,
            found,
            "scattered GPU pages",
            "each scattered 64 KiB page of the emulated GPU is a mapping of its own",
        )
    }
}

fn memfd() -> Check {
    use rustix::fs::{memfd_create, MemfdFlags};
    match memfd_create("ringbell-doctor", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING) {
        Ok(_) => Check::new(
            "memfd",
            Verdict::Ok,
            "can be made and sealed",
            "emulated GPU memory",
            "NICs of one user map each other's memory, so `local` copies a byte once",
        ),
        Err(error) => Check::new(
            "memfd",
            Verdict::Missing,
            format!("memfd_create failed: {error}"),
            "nothing",
            "the emulated GPU's memory is a memfd; run on Linux 3.17 or later, outside a sandbox that forbids it",
        ),
    }
}

fn peer_memory() -> Check {
    let scope = read("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_else(|| "none".into());
    Check::new(
        "peer memory",
        Verdict::Ok,
        format!("yama ptrace_scope: {scope}"),
        "memfds passed over a Unix socket",
        "process_vm_readv is not used, so ptrace_scope does not matter",
    )
}

/// The folder in which NICs of one user meet, as `nic_core`'s `LocalConfig` documents it, and its
/// parent, which must allow to create it.
fn meeting_place() -> (PathBuf, PathBuf) {
    match std::env::var_os("XDG_RUNTIME_DIR") {
        Some(dir) => (PathBuf::from(&dir).join("ringbell"), dir.into()),
        None => {
            let uid = rustix::process::getuid().as_raw();
            (format!("/tmp/ringbell-{uid}").into(), "/tmp".into())
        }
    }
}

fn socket_dir() -> Check {
    let (place, dir) = meeting_place();
    let probe = dir.join(format!("ringbell-doctor-{}", std::process::id()));
    let bound = std::os::unix::net::UnixListener::bind(&probe);
    // Nothing to do when it was not created.
    let _ = std::fs::remove_file(&probe);
    match bound {
        Ok(_) => Check::new(
            "Unix sockets",
            Verdict::Ok,
            format!("can be made in {}", dir.display()),
            format!("`local` transport, in {}", place.display()),
            "NICs of one host and one user find each other there",
        ),
        Err(error) => Check::new(
            "Unix sockets",
            Verdict::Instead,
            format!("{}: {error}", dir.display()),
            "`tcp` transport",
            "set XDG_RUNTIME_DIR to a folder that you may write to",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_proc_files_are_parsed() {
        assert_eq!(capabilities("CapEff:\t0000000000003000\n"), Some(0x3000));
        assert_eq!(capabilities("Name: x\n"), None);
        let meminfo = "MemTotal: 100 kB\nHugePages_Total:      12\nHugePages_Free: 3\n";
        assert_eq!(meminfo_number(meminfo, "HugePages_Total"), Some(12));
        assert_eq!(meminfo_number(meminfo, "HugePages"), None);
    }
}
