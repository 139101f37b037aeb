//! The ranks of one library, as the layer uses them: Ringbell's, or those of an MPI library.
#![allow(unsafe_code)] // Computes in memory of the NIC, and calls a library in C.

use std::path::Path;

use anyhow::{ensure, Context, Error};
use libloading::Library;
use ringbell::{Communicator, HostBuffer, ReduceOp};

/// Ranks, and the memory of their partial products.
pub(crate) trait Group {
    fn rank(&self) -> usize;

    fn ranks(&self) -> usize;

    /// Makes room for this many outputs.
    fn resize(&mut self, outputs: usize) -> Result<(), Error>;

    /// Returns when all ranks have called it.
    fn barrier(&mut self) -> Result<(), Error>;

    /// Memory for the partial product, from which it is sent.
    fn partial(&mut self) -> &mut [f32];

    /// Sums the partial products at rank 0.
    fn reduce(&mut self) -> Result<(), Error>;

    /// The sums, at rank 0.
    fn sums(&self) -> Result<Vec<f32>, Error>;
}

/// Ranks of a communicator.
pub(crate) struct OverRingbell<'a> {
    comm: &'a Communicator,
    outputs: usize,
    partial: HostBuffer,
    sums: HostBuffer,
}

impl<'a> OverRingbell<'a> {
    pub(crate) fn new(comm: &'a Communicator) -> Result<OverRingbell<'a>, Error> {
        Ok(OverRingbell {
            comm,
            outputs: 1,
            partial: comm.nic().alloc_host(size_of::<f32>())?,
            sums: comm.nic().alloc_host(size_of::<f32>())?,
        })
    }
}

impl Group for OverRingbell<'_> {
    fn rank(&self) -> usize {
        self.comm.rank() as usize
    }

    fn ranks(&self) -> usize {
        self.comm.size() as usize
    }

    fn resize(&mut self, outputs: usize) -> Result<(), Error> {
        self.outputs = outputs;
        self.partial = self.comm.nic().alloc_host(outputs * size_of::<f32>())?;
        self.sums = self.comm.nic().alloc_host(outputs * size_of::<f32>())?;
        Ok(())
    }

    fn barrier(&mut self) -> Result<(), Error> {
        Ok(self.comm.barrier()?)
    }

    fn partial(&mut self) -> &mut [f32] {
        // SAFETY: the buffer has this many elements, zeroed at first and aligned to a page. NICs
        // reach it in `reduce` alone, which borrows the group until they have done so.
        unsafe { std::slice::from_raw_parts_mut(self.partial.as_ptr().cast(), self.outputs) }
    }

    fn reduce(&mut self) -> Result<(), Error> {
        let (from, to) = (&self.partial, &self.sums);
        Ok(self
            .comm
            .reduce::<f32>(from, to, self.outputs as u64, ReduceOp::Sum, 0)?)
    }

    fn sums(&self) -> Result<Vec<f32>, Error> {
        let mut bytes = vec![0; self.outputs * size_of::<f32>()];
        self.sums.read(0, &mut bytes)?;
        let (words, _) = bytes.as_chunks();
        Ok(words.iter().map(|word| f32::from_ne_bytes(*word)).collect())
    }
}

/// Ranks of `MPI_COMM_WORLD`, by `over_mpi.c`.
pub(crate) struct OverMpi {
    library: Library,
    rank: usize,
    ranks: usize,
    partial: Vec<f32>,
    sums: Vec<f32>,
}

/// Calls a function of `over_mpi.c`; its result is MPI's error.
macro_rules! mpi {
    ($library:expr, $name:ident($($argument:expr => $type:ty),*)) => {{
        // SAFETY: the type is that of the function in over_mpi.c, and its pointers are to as many
        // elements as it is told.
        let error = unsafe {
            let name = stringify!($name);
            let f = $library.get::<unsafe extern "C" fn($($type),*) -> i32>(name.as_bytes())?;
            f($($argument),*)
        };
        ensure!(error == 0, "{} ended with MPI's error {error}", stringify!($name));
    }};
}

impl OverMpi {
    /// `library` is what `mpicc` has made of `over_mpi.c`.
    pub(crate) fn start(library: &Path) -> Result<OverMpi, Error> {
        // SAFETY: it has no initializers of its own, and those of MPI libraries are made for it.
        let library = unsafe { Library::new(library) }
            .with_context(|| format!("cannot load {}", library.display()))?;
        let (mut rank, mut ranks) = (0, 0);
        mpi!(library, over_mpi_start(&mut rank => &mut i32, &mut ranks => &mut i32));
        Ok(OverMpi {
            library,
            rank: usize::try_from(rank)?,
            ranks: usize::try_from(ranks)?,
            partial: Vec::new(),
            sums: Vec::new(),
        })
    }

    pub(crate) fn end(self) -> Result<(), Error> {
        mpi!(self.library, over_mpi_end());
        // MPI libraries leave threads and handlers behind.
        std::mem::forget(self.library);
        Ok(())
    }
}

impl Group for OverMpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.ranks
    }

    fn resize(&mut self, outputs: usize) -> Result<(), Error> {
        self.partial = vec![0.0; outputs];
        self.sums = vec![0.0; outputs];
        Ok(())
    }

    fn barrier(&mut self) -> Result<(), Error> {
        mpi!(self.library, over_mpi_barrier());
        Ok(())
    }

    fn partial(&mut self) -> &mut [f32] {
        &mut self.partial
    }

    fn reduce(&mut self) -> Result<(), Error> {
        let (from, to) = (self.partial.as_ptr(), self.sums.as_mut_ptr());
        let count = i32::try_from(self.sums.len())?;
        mpi!(self.library, over_mpi_reduce(from => *const f32, to => *mut f32, count => i32));
        Ok(())
    }

    fn sums(&self) -> Result<Vec<f32>, Error> {
        Ok(self.sums.clone())
    }
}
