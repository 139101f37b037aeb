//! A kernel of a user for all ranks of a cluster: code, shape, arguments and memory.

use ringbell_cuda_kernels::LaunchShape;
use ringbell_nic_core::NicConfig;

use crate::kernel_argument::KernelArgument;
use crate::simulation::{check_cluster, MEMORY_MOST};
use crate::{Cluster, Failure};

/// What buffers hold at first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Contents {
    /// Numbers that depend on seed and rank.
    Seed,
    /// Zeros, as in memory of windows.
    Zeros,
    /// These bytes of each rank, and zeros behind them.
    Given(Vec<Vec<u8>>),
}

/// A kernel on each rank of a cluster.
#[derive(Debug, Clone)]
pub struct KernelPlan {
    /// What errors call the text.
    pub file: String,
    /// PTX.
    pub text: String,
    /// The kernel's name; `None`: the only one of the text.
    pub kernel: Option<String>,
    /// Blocks and threads.
    pub shape: LaunchShape,
    /// What the kernel gets, by its parameters.
    pub arguments: Vec<KernelArgument>,
    /// Bytes of each rank's buffer, which is a window of the communicator.
    pub buffer_bytes: u64,
    /// What is in it at first.
    pub contents: Contents,
    /// Queues of each rank for blocks, which `gpu_comm_queue` gives; 0: there are none.
    pub block_queues: u32,
    /// Where. Its seed is also that of the buffers' contents where these depend on one, of the
    /// kernels' begin and of the threads' order: by 0 all kernels begin at once, and threads run in
    /// their order.
    pub cluster: Cluster,
    /// Virtual time that the kernels may take.
    pub within_ns: u64,
}

impl KernelPlan {
    /// Bytes of all memory that the kernel is given on a rank.
    pub(crate) fn given_bytes(&self) -> u64 {
        let own = self.arguments.iter().filter_map(KernelArgument::own_bytes);
        own.fold(self.buffer_bytes, u64::saturating_add)
    }

    pub(crate) fn check(&self) -> Result<(), Failure> {
        check_cluster(&self.cluster)?;
        let bytes = self.buffer_bytes;
        if self.given_bytes().saturating_mul(self.cluster.ranks as u64) > MEMORY_MOST {
            return Err(Failure::large(self.given_bytes(), MEMORY_MOST));
        }
        // One is the communicator's.
        let most = NicConfig::default().max_queues - 1;
        if self.block_queues as usize > most {
            return Err(Failure::Kernel(format!(
                "a NIC has queues for at most {most} blocks, and {} are asked for",
                self.block_queues
            )));
        }
        if let Contents::Given(all) = &self.contents {
            let ranks = self.cluster.ranks;
            if all.len() != ranks {
                return Err(Failure::Kernel(format!(
                    "the first contents of {} buffers are given, and there are {ranks} ranks",
                    all.len()
                )));
            }
            let is_long = |given: &Vec<u8>| given.len() as u64 > bytes;
            if let Some(rank) = all.iter().position(is_long) {
                return Err(Failure::Kernel(format!(
                    "the first contents of rank {rank}'s buffer have {} bytes, and the buffer has \
                     {bytes}",
                    all[rank].len()
                )));
            }
        }
        if bytes == 0 {
            return Err(Failure::Small { bytes });
        }
        Ok(())
    }
}
