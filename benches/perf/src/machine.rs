//! Description of the machine that a measurement ran on.

/// The GPU's name in reports: `emulated`, or the driver's name for it.
pub fn gpu_name(gpu: &ringbell::Gpu) -> String {
    match gpu.kind() {
        ringbell::gpu::GpuKind::Emulated => "emulated".into(),
        _ => gpu.describe(),
    }
}

/// The same in two words, for sentences.
pub fn gpu_kind(gpu: &ringbell::Gpu) -> &'static str {
    match gpu.kind() {
        ringbell::gpu::GpuKind::Emulated => "an emulated GPU",
        _ => "a CUDA GPU",
    }
}

/// Processor and kernel in one line.
pub fn description() -> String {
    let cpu = std::fs::read_to_string("/proc/cpuinfo")
        .ok()
        .and_then(|text| cpu_model(&text))
        .unwrap_or_else(|| std::env::consts::ARCH.to_string());
    let uname = rustix::system::uname();
    format!(
        "{cpu}, {} {}",
        uname.sysname().to_string_lossy(),
        uname.release().to_string_lossy()
    )
}

/// The `model name` line of /proc/cpuinfo.
fn cpu_model(cpuinfo: &str) -> Option<String> {
    let line = cpuinfo.lines().find(|l| l.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_string())
}

/// Cores that this process may run on, by number.
pub fn cores() -> Vec<usize> {
    allowed(None)
}

/// Cores that another process may run on, by number; none when it has ended.
pub(crate) fn cores_of(pid: u32) -> Vec<usize> {
    let pid = i32::try_from(pid)
        .ok()
        .and_then(rustix::process::Pid::from_raw);
    pid.map_or_else(Vec::new, |pid| allowed(Some(pid)))
}

fn allowed(pid: Option<rustix::process::Pid>) -> Vec<usize> {
    let Ok(set) = rustix::thread::sched_getaffinity(pid) else {
        return Vec::new();
    };
    (0..rustix::thread::CpuSet::MAX_CPU)
        .filter(|&c| set.is_set(c))
        .collect()
}

/// Pins the calling thread to one core; false when the kernel refuses.
pub fn pin_to(core: usize) -> bool {
    let mut set = rustix::thread::CpuSet::new();
    set.set(core);
    rustix::thread::sched_setaffinity(None, &set).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_model_name() {
        let text = "processor\t: 0\nmodel name\t: Some CPU @ 2.0GHz\nflags\t: avx2\n";
        assert_eq!(cpu_model(text).as_deref(), Some("Some CPU @ 2.0GHz"));
        assert_eq!(cpu_model("processor : 0\n"), None);
    }

    #[test]
    fn a_thread_pinned_to_a_core_runs_on_that_core_only() {
        let all = cores();
        assert!(!all.is_empty());
        let last = all[all.len() - 1];
        let seen = std::thread::spawn(move || pin_to(last).then(cores)).join();
        assert_eq!(seen.ok().flatten(), Some(vec![last]));
    }
}
