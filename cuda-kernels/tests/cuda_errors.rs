//! Machines whose CUDA is not as it should be, and drivers that lack functions: each error names
//! the remedy, and nothing panics (ADR 26).
#![allow(unsafe_code)] // Launches kernels.
#![cfg(feature = "cuda")]
#![allow(clippy::disallowed_methods)] // Tests at the edge.

use crate::mock_driver;

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use mock_driver::{under_mock, under_mock_without};
use ringbell_cuda_kernels::cuda::{CudaConfig, CudaError, CudaGpu, DmaBufMapper};
use ringbell_cuda_kernels::{GpuError, LaunchError};

const PATIENCE: Duration = Duration::from_secs(60);

fn open() -> Result<CudaGpu, CudaError> {
    CudaGpu::open(CudaConfig::default())
}

/// What the mock plants, and what has to be said.
const CASES: [(&str, &[&str]); 16] = [
    ("init=3", &["cuInit", "NOT_INITIALIZED (3)", "forked"]),
    ("init=34", &["STUB_LIBRARY (34)", "LD_LIBRARY_PATH"]),
    ("init=100", &["sees no GPU", "CUDA_VISIBLE_DEVICES"]),
    ("init=101", &["(101)", "nvidia-smi -L"]),
    (
        "init=802",
        &["SYSTEM_NOT_READY (802)", "nvidia-fabricmanager"],
    ),
    ("init=803", &["SYSTEM_DRIVER_MISMATCH (803)", "reboot"]),
    ("init=804", &["(804)", "cuda-compat"]),
    ("init=807", &["(807)", "Multi-Process Service"]),
    ("init=999", &["UNKNOWN (999)", "dmesg", "nvidia-uvm"]),
    (
        "context=46",
        &[
            "cuDevicePrimaryCtxRetain",
            "DEVICE_UNAVAILABLE (46)",
            "nvidia-smi -c 0",
        ],
    ),
    (
        "context=214",
        &["ECC_UNCORRECTABLE (214)", "nvidia-smi -q -d ECC"],
    ),
    ("context=304", &["(304)", "ulimit -l"]),
    (
        "image=222,no-nvrtc",
        &[
            "UNSUPPORTED_PTX_VERSION (222)",
            "install a later driver",
            "sm_90",
        ],
    ),
    (
        "image=209,capability=75",
        &["sm_75", "NO_BINARY_FOR_GPU (209)", "INVALID_OPTION"],
    ),
    ("attribute=41:0", &["unified addressing"]),
    ("attribute=19:0", &["mapped host memory"]),
];

#[test]
fn faults_of_a_machine_are_reported_with_a_remedy() {
    for (fault, _) in CASES {
        let name = "faults_of_a_machine_are_reported_with_a_remedy";
        under_mock(name, fault, || {
            let planted = std::env::var("RINGBELL_MOCK_CUDA").unwrap();
            let case = CASES.iter().find(|(fault, _)| *fault == planted);
            let text = open().unwrap_err().to_string();
            for words in case.unwrap().1 {
                assert!(text.contains(words), "{planted}: no `{words}` in: {text}");
            }
        });
        if std::env::var_os("RINGBELL_MOCK_CUDA").is_some() {
            return; // Inside: each process has one fault.
        }
    }
}

#[test]
fn a_driver_without_a_function_that_is_always_needed_is_refused() {
    let name = "a_driver_without_a_function_that_is_always_needed_is_refused";
    under_mock_without(name, &["cuStreamQuery"], "", || {
        let symbol = "cuStreamQuery";
        assert_eq!(open().unwrap_err(), CudaError::MissingSymbol { symbol });
    });
}

#[test]
fn optional_driver_functions_may_be_missing() {
    let name = "optional_driver_functions_may_be_missing";
    let all = [
        "cuDeviceGetUuid_v2",
        "cuEventElapsedTime_v2",
        "cuFuncLoad",
        "cuIpcGetMemHandle",
        "cuMemGetHandleForAddressRange",
        "cuModuleEnumerateFunctions",
        "cuModuleGetLoadingMode",
        "cuStreamBeginCapture_v2",
        "cuStreamWaitValue32_v2",
        "cuStreamWriteValue64_v2",
    ];
    under_mock_without(name, &all, "lazy-launch", || {
        let config = CudaConfig {
            mapper: Some(Arc::new(DmaBufMapper)),
            ..CudaConfig::default()
        };
        let gpu = CudaGpu::open(config).unwrap();
        let memory = gpu.alloc(100_000).unwrap();
        let missing = |symbol| CudaError::MissingSymbol { symbol };
        let words = "cuMemGetHandleForAddressRange";
        assert!(gpu.describe().contains(words), "{}", gpu.describe());
        match memory.share(0, 100) {
            Err(GpuError::Cuda(e)) => assert_eq!(e, missing("cuIpcGetMemHandle")),
            other => panic!("{other:?}"),
        }
        let stream = gpu.stream();
        match stream.begin_capture() {
            Err(LaunchError::Device { source, .. }) => {
                assert_eq!(source, missing("cuStreamBeginCapture_v2"));
            }
            other => panic!("{other:?}"),
        }
        let why = stream.has_words().unwrap_err();
        assert!(why.contains("cuStreamWaitValue32_v2"), "{why}");
        assert_eq!(gpu.capabilities().lazy_loading, None);
        // All else works: launches, copies, and times by the old name of the function.
        let before = stream.record();
        memory.write(0, &[5; 1000]).unwrap();
        let (m, zero) = (|| (&memory).into(), || 0_u32.into());
        let args = [m(), m(), zero(), zero(), 1000_u32.into(), m(), m()];
        // SAFETY: the kernel's own parameters, and memory that outlives it.
        let launch = unsafe { stream.launch("rb_floor_flag", 1, 1, &args) }.unwrap();
        launch.wait(PATIENCE).unwrap();
        let after = stream.record();
        after.wait(PATIENCE).unwrap();
        assert!(after.elapsed_since(&before).is_some());
    });
}

#[test]
fn a_run_time_compiler_without_its_functions_is_named() {
    let name = "a_run_time_compiler_without_its_functions_is_named";
    under_mock_without(name, &["nvrtcGetCUBIN"], "no-fatbin,no-ptx", || {
        let text = open().unwrap_err().to_string();
        assert!(
            text.contains("libnvrtc is too old and has no nvrtcGetCUBIN"),
            "{text}"
        );
    });
}

/// Names that follow `before` in a text.
fn names<'a>(text: &'a str, before: &'a str) -> impl Iterator<Item = &'a str> + 'a {
    text.split(before).skip(1).map(|rest| {
        let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && c != '_');
        &rest[..end.unwrap_or(rest.len())]
    })
}

/// Whether a text names a function other than as the call that has failed.
fn looks_for(text: &str, called: &str) -> bool {
    let quoted = format!("\"{called}\"");
    text.match_indices(&quoted)
        .any(|(at, _)| !text[..at].trim_end().ends_with("check("))
}

/// `cudarc` panics when a function is called that the driver lacks. So each is either among those
/// without which no GPU is opened, or named in quotes in the file that calls it, which looks for it
/// first.
#[test]
fn no_function_is_called_without_having_been_looked_for() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/cuda");
    let read = |path: &Path| std::fs::read_to_string(path).expect("a source file");
    let driver = read(&folder.join("driver.rs"));
    let needed = driver.split("const NEEDED").nth(1).expect("a list");
    let needed = &needed[..needed.find("];").expect("its end")];
    let mut seen = 0;
    for file in std::fs::read_dir(&folder).expect("sources") {
        let path = file.expect("an entry").path();
        let text = read(&path);
        for called in
            names(&text, "sys::").filter(|n| n.starts_with("cu") || n.starts_with("nvrtc"))
        {
            // Types, which are no functions.
            if called.starts_with("cudaError")
                || called.starts_with("culib")
                || called == "nvrtcProgram"
                || called == "nvrtcResult"
            {
                continue;
            }
            seen += 1;
            assert!(
                looks_for(needed, called) || looks_for(&text, called),
                "{}: {called} is called without a look-up before",
                path.display()
            );
        }
    }
    assert!(seen > 50, "found {seen} calls");
}
