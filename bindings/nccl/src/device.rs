//! Devices: a NIC each, which all communicators of the process share.
#![allow(clippy::disallowed_methods)] // Opens NICs of the host.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use ringbell::comm::Peers;
use ringbell::nic::{Cidr, NicConfig, OpenError, PortSpec, QueueConfig};
use ringbell::parts::nic_core::transport::local::LocalError;
use ringbell::parts::nic_core::NicError;
use ringbell::{HostQueue, Nic};

use crate::failure::Failure;
use crate::introduce::Introductions;
use crate::log;
use crate::memory::Registry;
use crate::settings::Settings;

/// Memory of the emulated GPU, which the plug-in does not use.
const GPU_MEMORY: u64 = 1 << 20;
/// Slots of a queue: for the operations of a collective communicator.
pub(crate) const DEPTH: u32 = 1024;
/// Most queues of a NIC: one for each collective communicator, and each that is being made.
const QUEUES: usize = 512;
const SESSIONS: usize = 8192;
/// How often another address is tried.
const TRIES: u32 = 8;
/// First port for listening; below are those that programs choose.
const FIRST_PORT: u16 = 1024;

/// A device.
#[derive(Debug)]
pub(crate) struct Device {
    pub(crate) name: &'static CStr,
    pub(crate) nic: Nic,
    /// Where it receives datagrams of other hosts.
    pub(crate) datagrams: Option<SocketAddr>,
    /// With the same address.
    pub(crate) introductions: Option<Introductions>,
    /// Mb/s.
    pub(crate) speed: i32,
    /// Longest time until a connection is made.
    pub(crate) timeout: Duration,
    pub(crate) memory: Registry,
    port: AtomicU16,
    /// Connections of this NIC to itself, by number.
    pub(crate) own: Mutex<HashMap<u64, Weak<Peers>>>,
    /// Threads that end communicators together with other ranks.
    partings: Mutex<Vec<JoinHandle<()>>>,
}

/// Random bytes of the system.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], Failure> {
    let mut bytes = [0; N];
    rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())
        .map_err(|e| Failure::system("no random numbers", &e))?;
    Ok(bytes)
}

impl Device {
    fn open(number: usize, port: &PortSpec, settings: &Settings) -> Result<Device, Failure> {
        let mut tries = 0;
        let nic = loop {
            // No process gives out addresses, so each takes one of 2^24 by chance. Of a host's NICs
            // each finds out whether it is taken.
            let [a, b, c] = random()?;
            let ip = Cidr {
                ip: Ipv4Addr::new(10, a, b, c.max(1)),
                prefix: 8,
            };
            let opened = Nic::builder()
                .ip(ip)
                .port(port.clone())
                .transport(settings.transport)
                .peer_timeout(settings.peer_timeout)
                .gpu("emulated")
                .gpu_memory(GPU_MEMORY)
                .queue(QueueConfig {
                    depth: DEPTH,
                    ..QueueConfig::default()
                })
                .limits(NicConfig {
                    max_queues: QUEUES,
                    max_sessions: SESSIONS,
                    ..NicConfig::default()
                })
                .open();
            match opened {
                Ok(nic) => break nic,
                Err(error) if is_taken(&error) && tries < TRIES => tries += 1,
                Err(error) => {
                    return Err(Failure::system(
                        &format!("cannot open device {number} on port {port}"),
                        &error,
                    ))
                }
            }
        };
        let datagrams = nic.ports().iter().find_map(|p| p.address);
        let introductions = datagrams.map(|own| Introductions::open(&nic, own));
        let introductions = introductions.transpose()?;
        log::info(&format!(
            "device ringbell{number}: NIC {} on port {port}, transport {}",
            nic.ip(),
            nic.transport()
        ));
        Ok(Device {
            name: name(number),
            datagrams,
            introductions,
            speed: settings.speed,
            timeout: settings.timeout,
            memory: Registry::new(&nic),
            nic,
            port: AtomicU16::new(FIRST_PORT),
            own: Mutex::default(),
            partings: Mutex::default(),
        })
    }

    /// Lets a thread end what other ranks take part in; the device is not closed before.
    pub(crate) fn part(&self, thread: JoinHandle<()>) {
        let mut all = self.partings.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|t| !t.is_finished());
        all.push(thread);
    }

    /// Waits for those threads.
    fn settle(&self) {
        let all =
            std::mem::take(&mut *self.partings.lock().unwrap_or_else(PoisonError::into_inner));
        for thread in all {
            // A panic there is reported by itself.
            let _ = thread.join();
        }
    }

    /// The next port to listen at; it may be taken.
    pub(crate) fn next_port(&self) -> u16 {
        // Relaxed: it only counts.
        let port = self.port.fetch_add(1, Ordering::Relaxed);
        port.max(FIRST_PORT)
    }

    /// A queue for one communicator.
    pub(crate) fn queue(&self) -> Result<HostQueue, Failure> {
        self.nic.create_queue().map_err(|e| {
            Failure::system(
                &format!("no queue for another communicator; a device has {QUEUES}"),
                &e,
            )
        })
    }
}

/// Whether another NIC has the address.
fn is_taken(error: &OpenError) -> bool {
    matches!(
        error,
        OpenError::Nic(NicError::Local(LocalError::AddressInUse { .. }))
    )
}

/// The name of a device. NCCL may keep it when the device is closed, so it is made once.
fn name(number: usize) -> &'static CStr {
    static NAMES: Mutex<Vec<&'static CStr>> = Mutex::new(Vec::new());
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    while names.len() <= number {
        let name = CString::new(format!("ringbell{}", names.len())).unwrap_or_default();
        names.push(Box::leak(name.into_boxed_c_str()));
    }
    names[number]
}

/// The devices, while there are users.
#[derive(Debug, Default)]
struct Open {
    users: usize,
    devices: Vec<Arc<Device>>,
}

static OPEN: Mutex<Open> = Mutex::new(Open {
    users: 0,
    devices: Vec::new(),
});

fn open() -> MutexGuard<'static, Open> {
    OPEN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One more user; the first one opens the devices.
pub(crate) fn acquire() -> Result<(), Failure> {
    let mut open = open();
    if open.users == 0 {
        let settings = Settings::read(|name| std::env::var(name).ok())?;
        let ports = settings.ports.iter().enumerate();
        open.devices = ports
            .map(|(n, port)| Device::open(n, port, &settings).map(Arc::new))
            .collect::<Result<_, _>>()?;
    }
    open.users += 1;
    Ok(())
}

/// One user less. The last one closes the devices, unless communicators were left open.
pub(crate) fn release() {
    let mut open = open();
    open.users = open.users.saturating_sub(1);
    if open.users == 0 {
        let devices = std::mem::take(&mut open.devices);
        drop(open);
        devices.iter().for_each(|d| d.settle());
        drop(devices);
    }
}

/// How many there are.
pub(crate) fn count() -> usize {
    open().devices.len()
}

/// One of them.
pub(crate) fn get(number: i32) -> Result<Arc<Device>, Failure> {
    let open = open();
    let device = usize::try_from(number)
        .ok()
        .and_then(|n| open.devices.get(n));
    device.cloned().ok_or_else(|| {
        Failure::argument(format!(
            "there is no device {number}; there are {}",
            open.devices.len()
        ))
    })
}
