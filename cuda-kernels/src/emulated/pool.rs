//! The threads that run blocks: one OS thread per running block, kept from launch to launch.
//!
//! Blocks beyond the limit wait until others end, as blocks beyond a GPU's residency do. Therefore
//! blocks that wait for each other must not be more than `max_threads`.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use crossbeam::channel::{unbounded, Receiver, Sender};

use crate::locks::lock;

/// Something to run on a thread of the pool.
pub(super) type BlockJob = Box<dyn FnOnce() + Send>;

/// A pool of worker threads. Dropping it lets idle workers end; a worker whose kernel never ends is
/// left to itself (it keeps the memory it uses alive).
pub(super) struct Pool {
    jobs: Sender<BlockJob>,
    queue: Receiver<BlockJob>,
    /// Jobs that have not ended.
    open: Arc<AtomicUsize>,
    threads: Mutex<usize>,
    max_threads: usize,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Pool({} threads)", lock(&self.threads))
    }
}

impl Pool {
    pub(super) fn new(max_threads: usize) -> Pool {
        let (jobs, queue) = unbounded();
        Pool {
            jobs,
            queue,
            open: Arc::default(),
            threads: Mutex::new(0),
            max_threads: max_threads.max(1),
        }
    }

    /// Most jobs that run at the same time.
    pub(super) fn max_threads(&self) -> usize {
        self.max_threads
    }

    /// Queues jobs and starts the threads they need.
    ///
    /// # Errors
    /// When no thread at all can be started; the jobs are dropped then.
    pub(super) fn submit(&self, jobs: impl IntoIterator<Item = BlockJob>) -> std::io::Result<()> {
        let jobs: Vec<BlockJob> = jobs.into_iter().collect();
        let mut threads = lock(&self.threads);
        // Relaxed: a job that ends at this moment counts still, which costs at most a thread more.
        let open = self.open.fetch_add(jobs.len(), Ordering::Relaxed) + jobs.len();
        while *threads < open.min(self.max_threads) {
            let (queue, open) = (self.queue.clone(), self.open.clone());
            let spawned = std::thread::Builder::new()
                .name(format!("rb-gpu-{threads}"))
                .stack_size(4 << 20)
                .spawn(move || {
                    for job in queue {
                        job();
                        open.fetch_sub(1, Ordering::Relaxed);
                    }
                });
            match spawned {
                Ok(_) => *threads += 1,
                // Fewer threads than blocks still make progress, as long as there is one.
                Err(_) if *threads > 0 => break,
                Err(e) => {
                    self.open.fetch_sub(jobs.len(), Ordering::Relaxed);
                    return Err(e);
                }
            }
        }
        for job in jobs {
            // The pool itself has a receiver, so the channel is open.
            let _ = self.jobs.send(job);
        }
        Ok(())
    }
}

#[cfg(test)]
#[allow(clippy::disallowed_methods)] // A test waits for threads.
mod tests {
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn jobs_up_to_the_limit_run_together_and_threads_are_reused() {
        let pool = Pool::new(4);
        let barrier = Arc::new(std::sync::Barrier::new(4));
        for _ in 0..3 {
            let (tx, rx) = channel();
            pool.submit((0..4).map(|_| {
                let (b, tx) = (barrier.clone(), tx.clone());
                Box::new(move || {
                    b.wait();
                    tx.send(()).unwrap();
                }) as BlockJob
            }))
            .unwrap();
            for _ in 0..4 {
                rx.recv().unwrap();
            }
        }
        assert!(*lock(&pool.threads) <= 4);
    }

    #[test]
    fn queued_jobs_run_after_the_pool_is_dropped_and_the_threads_end() {
        let pool = Pool::new(1);
        let open = Arc::downgrade(&pool.open);
        let (tx, rx) = channel();
        pool.submit((0..3).map(|i| {
            let tx = tx.clone();
            Box::new(move || tx.send(i).unwrap()) as BlockJob
        }))
        .unwrap();
        drop((pool, tx));
        assert_eq!(rx.iter().collect::<Vec<_>>(), [0, 1, 2]);
        for _ in 0..1000 {
            if open.strong_count() == 0 {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        panic!("a thread has not ended");
    }

    #[test]
    fn more_jobs_than_threads_all_run() {
        let pool = Pool::new(2);
        let count = Arc::new(AtomicUsize::new(0));
        let (tx, rx) = channel();
        pool.submit((0..50).map(|_| {
            let (c, tx) = (count.clone(), tx.clone());
            Box::new(move || {
                c.fetch_add(1, Ordering::Relaxed);
                tx.send(()).unwrap();
            }) as BlockJob
        }))
        .unwrap();
        for _ in 0..50 {
            rx.recv().unwrap();
        }
        assert_eq!(count.load(Ordering::Relaxed), 50);
    }
}
