//! The NIC, and a process's place in a job.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use pyo3::prelude::*;
use ringbell::job::{BootstrapServer, Member, UniqueId};
use ringbell::nic::{NicConfig, ProgressMode, RoutesError};
use ringbell::NicBuilder;

use crate::element::Dtype;
use crate::failure::{self, Failure};
use crate::memory::{DeviceBuffer, HostBuffer, Shape};
use crate::operand::{Operand, Registration, Registry};
use crate::process::Owned;
use crate::socket::{Listener, Socket};
use crate::waiting::{interruptible, seconds};

/// A NIC with its GPU.
#[pyclass(frozen, module = "ringbell")]
pub(crate) struct Nic {
    pub(crate) registry: Arc<Registry>,
    /// Of a new rank, until it joins a communicator.
    member: Owned<Mutex<Option<Member>>>,
}

impl Nic {
    /// Takes the place in the running job that this NIC was opened for.
    pub(crate) fn member(&self) -> PyResult<Member> {
        let member = self.member.get()?.lock();
        let member = member.unwrap_or_else(PoisonError::into_inner).take();
        member.ok_or_else(|| {
            failure::argument("this NIC was not opened for a new rank (`new_rank_of`), or has joined a communicator already")
        })
    }
}

#[pymethods]
impl Nic {
    #[new]
    #[pyo3(signature = (ip = None, *, job = None, new_rank_of = None, join_timeout = 30.0, transport = None, port = None, directory = None, gpu = None, gpu_memory = None, progress = None, max_queues = None, node = None, wires = None, tables = None, wire_grace = None, wire_poll = None))]
    #[allow(clippy::too_many_arguments)] // Named in Python.
    fn new(
        py: Python<'_>,
        ip: Option<String>,
        job: Option<&Job>,
        new_rank_of: Option<&str>,
        join_timeout: f64,
        transport: Option<String>,
        port: Option<String>,
        directory: Option<String>,
        gpu: Option<String>,
        gpu_memory: Option<u64>,
        progress: Option<&str>,
        max_queues: Option<usize>,
        node: Option<u32>,
        wires: Option<BTreeMap<u8, String>>,
        tables: Option<PathBuf>,
        wire_grace: Option<f64>,
        wire_poll: Option<u32>,
    ) -> PyResult<Nic> {
        let progress = match progress {
            None => None,
            Some("waiter") => Some(ProgressMode::Waiter),
            Some("dedicated") => Some(ProgressMode::Dedicated),
            Some(other) => {
                let text = format!("progress is `{other}`; write waiter or dedicated");
                return Err(failure::argument(text));
            }
        };
        let builder = ringbell::Nic::builder();
        let builder = builder.when(job, |b, job| b.job(&job.job));
        let member = match new_rank_of {
            None => None,
            Some(id) => {
                let id: UniqueId = id.parse().map_err(|e| failure::job(&e))?;
                let timeout = seconds(join_timeout, "join_timeout")?;
                let joined = interruptible(py, move || Member::join_running(&id, timeout))?;
                Some(joined.map_err(|e| failure::job(&e))?)
            }
        };
        let builder = builder.when(member.as_ref(), NicBuilder::member);
        let builder = builder
            .when(ip.as_deref(), NicBuilder::ip)
            .when(transport.as_deref(), NicBuilder::transport)
            .when(port.as_deref(), NicBuilder::port)
            .when(directory, NicBuilder::directory)
            .when(gpu.as_deref(), NicBuilder::gpu)
            .when(gpu_memory, NicBuilder::gpu_memory)
            .when(progress, NicBuilder::progress)
            .when(max_queues, |b, n| b.limits(NicConfig::with_queues(n)));
        let wire_grace = wire_grace.map(|t| seconds(t, "wire_grace")).transpose()?;
        let builder = builder
            .when(node, NicBuilder::node)
            .when(tables, NicBuilder::tables)
            .when(wire_grace, NicBuilder::wire_grace)
            .when(wire_poll, NicBuilder::wire_poll);
        let wires = wires.unwrap_or_default();
        let builder = wires.iter().fold(builder, |b, (port, carrier)| {
            b.wire(*port, carrier.as_str())
        });
        let nic = py.detach(|| builder.open());
        let nic = nic.map_err(|e| match e {
            e @ ringbell::OpenError::Setting { .. } => failure::argument(e.to_string()),
            e => failure::host(&e),
        })?;
        Ok(Nic {
            registry: Registry::new(nic),
            member: Owned::new(Mutex::new(member)),
        })
    }

    #[getter]
    fn ip(&self) -> PyResult<String> {
        Ok(self.registry.nic()?.ip().to_string())
    }

    fn describe(&self) -> PyResult<String> {
        Ok(self.registry.nic()?.describe())
    }

    #[pyo3(signature = (shape, dtype = Dtype::default()))]
    fn alloc_host(&self, shape: Shape, dtype: Dtype) -> PyResult<HostBuffer> {
        HostBuffer::new(shape, dtype, |bytes| self.registry.alloc_host(bytes))
    }

    #[pyo3(signature = (shape, dtype = Dtype::default()))]
    fn alloc(&self, shape: Shape, dtype: Dtype) -> PyResult<DeviceBuffer> {
        DeviceBuffer::new(self.registry.nic()?, shape, dtype)
    }

    fn register(&self, array: &Bound<'_, PyAny>) -> PyResult<Registration> {
        let operand = self.registry.pin(Operand::of(array)?)?;
        Ok(Registration::new(operand))
    }

    /// Listens for connections; 0 as backlog is 16.
    #[pyo3(signature = (port, backlog = 0))]
    fn listen(&self, py: Python<'_>, port: u16, backlog: u16) -> PyResult<Listener> {
        Listener::listen(py, &self.registry, port, backlog)
    }

    /// Connects to `address:port`.
    #[pyo3(signature = (to, timeout = None))]
    fn connect(&self, py: Python<'_>, to: String, timeout: Option<f64>) -> PyResult<Socket> {
        let timeout = timeout.map(|t| seconds(t, "timeout")).transpose()?;
        Socket::connect(py, &self.registry, to, timeout)
    }

    fn flush(&self, py: Python<'_>, timeout: f64) -> PyResult<bool> {
        let timeout = seconds(timeout, "timeout")?;
        let nic = self.registry.nic()?.clone();
        interruptible(py, move || nic.flush(timeout))
    }

    #[pyo3(signature = (file, timeout = 10.0))]
    fn replace_routes(&self, py: Python<'_>, file: PathBuf, timeout: f64) -> PyResult<()> {
        let patience = seconds(timeout, "timeout")?;
        let nic = self.registry.nic()?.clone();
        let replaced = interruptible(py, move || nic.replace_routes(file, patience))?;
        replaced.map_err(|e| match e {
            e @ RoutesError::NoMesh => failure::argument(e.to_string()),
            e => failure::host(&e),
        })
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        let nic = self.registry.nic()?.clone();
        let closed = interruptible(py, move || nic.close())?;
        closed.map_err(|lost| Failure::new("TIMED_OUT", lost.to_string()).raise())
    }
}

/// This process's place in a job, as its launcher gives it.
#[pyclass(frozen, module = "ringbell")]
pub(crate) struct Job {
    pub(crate) job: ringbell::Job,
}

#[pymethods]
impl Job {
    /// Reads the environment of `ringbell run`, torchrun, mpirun, mpiexec or srun.
    #[staticmethod]
    fn from_env() -> PyResult<Job> {
        let job = ringbell::Job::from_env().map_err(|e| failure::job(&e))?;
        Ok(Job { job })
    }

    /// A place that no launcher gave. Settings of the NIC are the environment's.
    #[staticmethod]
    fn of(id: String, rank: u32, size: u32) -> PyResult<Job> {
        use ringbell::job::variables as v;
        let given = [
            (v::RANK, rank.to_string()),
            (v::SIZE, size.to_string()),
            (v::ID, id),
        ];
        let find = |name: &str| match given.iter().find(|g| g.0 == name) {
            Some(given) => Some(given.1.clone()),
            None if [v::TRANSPORT, v::PORT, v::SWITCH].contains(&name) => std::env::var(name).ok(),
            None => None,
        };
        let job = ringbell::Job::from_variables(&find).map_err(|e| failure::job(&e))?;
        Ok(Job { job })
    }

    #[getter]
    fn rank(&self) -> u32 {
        self.job.rank()
    }

    #[getter]
    fn size(&self) -> u32 {
        self.job.size()
    }

    #[getter]
    fn local_rank(&self) -> Option<u32> {
        self.job.local_rank()
    }

    #[getter]
    fn launcher(&self) -> String {
        self.job.source().to_string()
    }
}

/// The server by which the ranks of a job find each other.
#[pyclass(frozen, module = "ringbell")]
pub(crate) struct Bootstrap {
    server: Owned<BootstrapServer>,
}

#[pymethods]
impl Bootstrap {
    #[new]
    #[pyo3(signature = (ranks, host = "127.0.0.1"))]
    fn new(ranks: u32, host: &str) -> PyResult<Bootstrap> {
        let no_address = |_| failure::argument(format!("`{host}` is no IPv4 address of this host"));
        let host: Ipv4Addr = host.parse().map_err(no_address)?;
        let server = BootstrapServer::start((host, 0).into(), Some(ranks));
        let server = Owned::new(server.map_err(|e| failure::job(&e))?);
        Ok(Bootstrap { server })
    }

    /// The job's id, for `RINGBELL_ID`.
    #[getter]
    fn id(&self) -> PyResult<String> {
        Ok(self.server.get()?.id().to_string())
    }

    /// Directory in which the job's NICs find each other on this host.
    #[getter]
    fn directory(&self) -> PyResult<std::path::PathBuf> {
        Ok(self.server.get()?.id().local_directory())
    }

    /// Says that a rank has ended, so that the others stop waiting for it.
    fn rank_ended(&self, rank: u32, how: &str) -> PyResult<()> {
        self.server.get()?.rank_ended(rank, how);
        Ok(())
    }
}
