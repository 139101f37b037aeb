//! Communicators: collectives and messages on memory of Python objects.

use std::sync::Arc;
use std::time::Duration;

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::PyDict;
use ringbell::abi::collective::{ANY_RANK, ANY_TAG};
use ringbell::abi::CollectiveKind;
use ringbell::comm::{CollectiveSettings, CommOptions, HostRanks, WireType};
use ringbell::{Algorithm, CollectiveError, Communicator, DataType, Operation, ReduceOp, Span};

use crate::element::by_name;
use crate::engine::{Engine, Wanted};
use crate::failure;
use crate::nic::{Job, Nic};
use crate::operand::{Operand, Registry};
use crate::posted::{Posted, Shared};
use crate::request::Request;
use crate::waiting::{interruptible, seconds};

/// The value of a name, in small letters as Python's arguments are.
fn named<T: Copy>(
    all: &[T],
    name: impl Fn(T) -> &'static str,
    given: &str,
    what: &str,
) -> PyResult<T> {
    let found = all.iter().find(|v| name(**v).eq_ignore_ascii_case(given));
    found.copied().ok_or_else(|| {
        let known: Vec<String> = all.iter().map(|v| name(*v).to_ascii_lowercase()).collect();
        failure::argument(format!(
            "{what} is `{given}`; there is {}",
            known.join(", ")
        ))
    })
}

/// A contiguous tensor, its address and bytes, and, in CUDA's memory, the handle of the stream
/// whose work comes first.
type Tensor<'py> = (Bound<'py, PyAny>, u64, u64, Option<u64>);

/// Settings of one operation; `None` is the communicator's.
#[derive(Default)]
struct Options {
    timeout: Option<Duration>,
    algo: Option<Algorithm>,
    wire: Option<WireType>,
    /// Operations that must have ended before it begins.
    after: Vec<Py<Request>>,
}

impl Options {
    /// Those that a call was given by name. `kind` is the call's.
    fn of(kind: &str, given: Option<&Bound<'_, PyDict>>) -> PyResult<Options> {
        let mut options = Options::default();
        for (name, value) in given.into_iter().flatten() {
            let name: String = name.extract()?;
            match name.as_str() {
                _ if value.is_none() => {}
                "timeout" => options.timeout = Some(seconds(value.extract()?, "timeout")?),
                "algo" => {
                    let given: String = value.extract()?;
                    options.algo = Some(named(Algorithm::ALL, Algorithm::name, &given, "algo")?);
                }
                "wire" => {
                    let given: String = value.extract()?;
                    options.wire = Some(named(WireType::ALL, WireType::name, &given, "wire")?);
                }
                "after" => options.after = requests(&value)?,
                _ => {
                    return Err(PyTypeError::new_err(format!(
                        "{kind}() has no argument `{name}`; its options are timeout, algo, wire and after"
                    )))
                }
            }
        }
        Ok(options)
    }
}

/// One request, or several.
fn requests(given: &Bound<'_, PyAny>) -> PyResult<Vec<Py<Request>>> {
    let wrong = || {
        PyTypeError::new_err(
            "after: give the requests that must have ended before, such as [comm.isend(...)]",
        )
    };
    if let Ok(one) = given.cast::<Request>() {
        return Ok(vec![one.clone().unbind()]);
    }
    let all = given.try_iter().map_err(|_| wrong())?;
    all.map(|r| Ok(r?.cast_into::<Request>().map_err(|_| wrong())?.unbind()))
        .collect()
}

/// A group of ranks that run collectives together.
#[pyclass(frozen, module = "ringbell")]
pub(crate) struct Comm {
    shared: Arc<Shared>,
}

impl Comm {
    fn new(
        registry: &Arc<Registry>,
        comm: Result<Communicator, CollectiveError>,
    ) -> PyResult<Comm> {
        let comm = comm.map_err(|e| failure::collective(&e))?;
        let shared = Shared::new(comm, registry);
        Ok(Comm { shared })
    }

    fn comm(&self) -> PyResult<&Communicator> {
        self.shared.comm.get()
    }

    /// Runs a call on the communicator that waits for other ranks.
    fn waiting<T: Send + 'static>(
        &self,
        py: Python<'_>,
        call: impl FnOnce(Communicator) -> T + Send + 'static,
    ) -> PyResult<T> {
        let comm = self.comm()?.clone();
        interruptible(py, move || call(comm))
    }

    /// Posts an operation, whose operands are the NIC's from then on.
    #[allow(clippy::too_many_arguments)] // The fields of an operation.
    fn start(
        &self,
        py: Python<'_>,
        kind: &str,
        mut src: Option<Operand>,
        mut dst: Option<Operand>,
        op: Option<&str>,
        root: Option<u32>,
        tag: Option<u32>,
        options: Options,
    ) -> PyResult<Request> {
        let comm = self.comm()?;
        let (rank, ranks) = (comm.rank(), comm.size());
        let kind = named(CollectiveKind::ALL, CollectiveKind::name, kind, "kind")?;
        let op = match op {
            Some(op) => named(ReduceOp::ALL, ReduceOp::name, op, "op")?,
            None => ReduceOp::Sum,
        };
        let root = root.unwrap_or(ANY_RANK);
        let dtype = dtype(src.as_ref(), dst.as_ref())?;
        let one = Operation::by_kind(kind, dtype, op, Span::NONE, Span::NONE, 1, root);
        let needs = one.needs(rank, ranks);
        let count = count(kind, needs, ranks, src.as_ref(), dst.as_ref())?;
        // A rank that gives no memory may pass some, as in place: it is not looked at.
        src = src.filter(|_| needs.0 > 0 && count > 0);
        dst = dst.filter(|_| needs.1 > 0 && count > 0);
        dst = dst.map(Operand::writable).transpose()?;
        // Their memory may have been freed, and given to these operands.
        self.shared.collect_dropped();
        let mut both: Vec<&mut Operand> = src.iter_mut().chain(dst.iter_mut()).collect();
        self.shared.registry.register(&mut both)?;
        let span = |o: &Option<Operand>| o.as_ref().map_or(Span::NONE, Operand::span);
        let (from, to) = (span(&src), span(&dst));
        let mut operation = Operation::by_kind(kind, dtype, op, from, to, count, root);
        operation = operation.tag(tag.unwrap_or(if kind == CollectiveKind::Recv {
            ANY_TAG
        } else {
            0
        }));
        let limit = options.timeout.unwrap_or(comm.options().timeout);
        if let Some(timeout) = options.timeout {
            operation = operation.timeout(timeout);
        }
        if let Some(algo) = options.algo {
            operation = operation.algo(algo);
        }
        if let Some(wire) = options.wire {
            operation = operation.wire(wire);
        }
        for request in &options.after {
            operation = request.get().before(operation)?;
        }
        // Where the queue is full it waits for completions that other threads take, with the
        // interpreter's lock.
        let request = py.detach(|| {
            self.shared.make_room();
            comm.post(&operation)
        });
        let request = request.map_err(|e| failure::collective(&e))?;
        let posted = Posted::new(request, src.into_iter().chain(dst).collect());
        Ok(Request::new(posted, self.shared.clone(), kind, limit))
    }
}

/// Elements of an operation, as its operands give them.
fn count(
    kind: CollectiveKind,
    needs: (u64, u64),
    ranks: u32,
    src: Option<&Operand>,
    dst: Option<&Operand>,
) -> PyResult<u64> {
    let name = || kind.name().to_ascii_lowercase();
    let sides = [("source", needs.0, src), ("destination", needs.1, dst)];
    let mut count = None;
    for (side, blocks, operand) in sides {
        if blocks == 0 {
            continue;
        }
        let Some(operand) = operand else {
            return Err(failure::argument(format!(
                "{} needs a {side} on this rank",
                name()
            )));
        };
        let elements = operand.count();
        if elements % blocks != 0 {
            return Err(failure::argument(format!(
                "{}: the {side} has {elements} elements, which are no block for each of {ranks} ranks",
                name()
            )));
        }
        let here = elements / blocks;
        if count.is_some_and(|c| c != here) {
            let (source, destination) = (src.map_or(0, Operand::count), elements);
            return Err(failure::argument(format!(
                "{}: source and destination do not fit each other on {ranks} ranks: {source} and {destination} elements, for {} and {} block(s)",
                name(), needs.0, needs.1
            )));
        }
        count = Some(here);
    }
    Ok(count.unwrap_or(0))
}

/// Settings of a communicator, by name; those that are missing or `None` have their default.
fn settings(given: Option<&Bound<'_, PyDict>>) -> PyResult<CommOptions> {
    let mut options = CommOptions::default();
    for (name, value) in given.into_iter().flatten() {
        let name: String = name.extract()?;
        match name.as_str() {
            _ if value.is_none() => {}
            "timeout" => options.timeout = seconds(value.extract()?, "timeout")?,
            "init_timeout" => options.init_timeout = seconds(value.extract()?, "init_timeout")?,
            "algo" => {
                let given: String = value.extract()?;
                options.algo = named(Algorithm::ALL, Algorithm::name, &given, "algo")?;
            }
            "wire" => {
                let given: String = value.extract()?;
                options.wire = named(WireType::ALL, WireType::name, &given, "wire")?;
            }
            "port" => options.port = value.extract()?,
            "host_ranks" if value.extract::<u64>().is_err() => {
                let sizes: Vec<u32> = value.extract()?;
                options.settings.host_ranks = HostRanks::of_sizes(&sizes);
            }
            setting if CollectiveSettings::NAMES.contains(&setting) => {
                let set = options.settings.set(setting, value.extract()?);
                set.map_err(|e| failure::argument(e.to_string()))?;
            }
            _ => {
                return Err(PyTypeError::new_err(format!(
                    "a communicator has no setting `{name}`; there is timeout, init_timeout, algo, wire, port, {}",
                    CollectiveSettings::NAMES.join(", ")
                )))
            }
        }
    }
    Ok(options)
}

/// The element type, which both operands have.
fn dtype(src: Option<&Operand>, dst: Option<&Operand>) -> PyResult<DataType> {
    match (src.map(|o| o.dtype), dst.map(|o| o.dtype)) {
        (Some(a), Some(b)) if a != b => Err(failure::argument(format!(
            "the source has elements of type {a:?}, the destination {b:?}; give both one type"
        ))),
        (Some(one), _) | (None, Some(one)) => Ok(one),
        (None, None) => Ok(DataType::U8),
    }
}

#[pymethods]
impl Comm {
    /// The communicator of a job; all ranks make it together.
    #[staticmethod]
    #[pyo3(signature = (nic, job, **settings))]
    fn of_job(
        py: Python<'_>,
        nic: &Nic,
        job: &Job,
        settings: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Comm> {
        let options = self::settings(settings)?;
        let (job, on) = (job.job.clone(), nic.registry.nic()?.clone());
        let made = interruptible(py, move || Communicator::from_job(&on, &job, &options))?;
        Comm::new(&nic.registry, made)
    }

    /// The communicator of a running job that takes this new rank in.
    #[staticmethod]
    #[pyo3(signature = (nic, **settings))]
    fn join(py: Python<'_>, nic: &Nic, settings: Option<&Bound<'_, PyDict>>) -> PyResult<Comm> {
        let options = self::settings(settings)?;
        let (member, on) = (nic.member()?, nic.registry.nic()?.clone());
        let made = interruptible(py, move || Communicator::join(&on, member, &options))?;
        Comm::new(&nic.registry, made)
    }

    /// Puts an engine at a place of the communicator.
    #[pyo3(signature = (engine, place, item = 1))]
    fn attach_engine(
        &self,
        engine: &Bound<'_, PyAny>,
        place: &str,
        item: usize,
    ) -> PyResult<Engine> {
        let place = crate::engine::place(place)?;
        let comm = self.shared.comm.get()?;
        let wanted = Wanted::of(engine)?;
        wanted.attach(&self.shared.registry, |e| {
            comm.attach_engine(place, e, item.max(1))
        })
    }

    /// The id by which processes join the job.
    #[getter]
    fn job_id(&self, py: Python<'_>) -> PyResult<String> {
        // A server that has ended is looked for.
        let id = self.waiting(py, |comm| comm.job_id())?;
        Ok(id.map_err(|e| failure::collective(&e))?.to_string())
    }

    #[getter]
    fn rank(&self) -> u32 {
        self.shared.rank()
    }

    #[getter]
    fn size(&self) -> PyResult<u32> {
        Ok(self.comm()?.size())
    }

    #[getter]
    fn job_ranks(&self) -> PyResult<Vec<u32>> {
        Ok(self.comm()?.job_ranks().to_vec())
    }

    #[getter]
    fn timeout(&self) -> PyResult<f64> {
        Ok(self.comm()?.options().timeout.as_secs_f64())
    }

    /// Starts an operation.
    #[pyo3(signature = (kind, src, dst, op = None, root = None, tag = None, **options))]
    #[allow(clippy::too_many_arguments)] // The fields of an operation; `ringbell.Communicator` names them.
    fn post(
        &self,
        py: Python<'_>,
        kind: &str,
        src: Option<&Bound<'_, PyAny>>,
        dst: Option<&Bound<'_, PyAny>>,
        op: Option<&str>,
        root: Option<u32>,
        tag: Option<u32>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Request> {
        let options = Options::of(kind, options)?;
        let src = src.map(Operand::of).transpose()?;
        let dst = dst.map(Operand::of).transpose()?;
        self.start(py, kind, src, dst, op, root, tag, options)
    }

    /// Starts an operation on tensors, each given with its address and bytes: contiguous, of one
    /// element type.
    #[allow(clippy::too_many_arguments)] // As `post`; by position, because naming arguments costs time.
    fn post_tensors(
        &self,
        py: Python<'_>,
        kind: &str,
        dtype: &str,
        src: Option<Tensor<'_>>,
        dst: Option<Tensor<'_>>,
        op: Option<&str>,
        root: Option<u32>,
        tag: Option<u32>,
        timeout: f64,
    ) -> PyResult<Request> {
        let dtype = by_name(dtype)?;
        let operand =
            |(t, va, bytes, stream): Tensor<'_>| Operand::of_tensor(&t, va, bytes, stream, dtype);
        let options = Options {
            timeout: Some(seconds(timeout, "timeout")?),
            ..Options::default()
        };
        let (src, dst) = (src.map(operand).transpose()?, dst.map(operand).transpose()?);
        self.start(py, kind, src, dst, op, root, tag, options)
    }

    /// Loads a user's program.
    fn load_program(&self, text: &str) -> PyResult<()> {
        let loaded = self.comm()?.load_program(text);
        loaded.map_err(|e| failure::collective(&e))
    }

    #[pyo3(signature = (colour, key = 0))]
    fn split(&self, py: Python<'_>, colour: Option<u32>, key: i32) -> PyResult<Option<Comm>> {
        let made = self.waiting(py, move |c| c.split(colour, key))?;
        match made.transpose() {
            Some(made) => Comm::new(&self.shared.registry, made).map(Some),
            None => Ok(None),
        }
    }

    fn shrink(&self, py: Python<'_>, patience: f64) -> PyResult<Comm> {
        let patience = seconds(patience, "patience")?;
        let made = self.waiting(py, move |c| c.shrink(patience))?;
        Comm::new(&self.shared.registry, made)
    }

    fn grow(&self, py: Python<'_>, ranks: u32, patience: f64) -> PyResult<Comm> {
        let patience = seconds(patience, "patience")?;
        let made = self.waiting(py, move |c| c.grow(ranks, patience))?;
        Comm::new(&self.shared.registry, made)
    }

    fn merge(&self, py: Python<'_>, others: Vec<u32>) -> PyResult<Comm> {
        let made = self.waiting(py, move |c| c.merge(&others))?;
        Comm::new(&self.shared.registry, made)
    }

    fn abort(&self) -> PyResult<()> {
        self.comm().map(Communicator::abort)
    }

    fn settle(&self, py: Python<'_>) -> PyResult<()> {
        let settled = self.waiting(py, |c| c.settle())?;
        self.shared.collect_dropped();
        settled.map_err(|e| failure::collective(&e))
    }

    fn finish(&self, py: Python<'_>, patience: f64) -> PyResult<()> {
        let patience = seconds(patience, "patience")?;
        let finished = self.waiting(py, move |c| c.finish(patience))?;
        finished.map_err(|e| failure::collective(&e))
    }

    /// Transport to each rank, by rank.
    #[getter]
    fn transports(&self) -> PyResult<Vec<Option<String>>> {
        let info = self.comm()?.info().map_err(|e| failure::collective(&e))?;
        let all = info.peers.iter().map(|p| p.transport.map(String::from));
        Ok(all.collect())
    }
}
