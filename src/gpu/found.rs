//! The doctor's lines about GPUs: which there are, what reaches what, and exactly what is missing.

use brigade_cuda::cufile::GpuDirect;
use brigade_cuda::nvrtc::{self, Compiler};
use brigade_cuda::{Context, Cuda, Device, PeerLink, Result, Version};
use brigade_trainer::kernels::cuda::{BLAS_VARIABLE, find_blas};

use crate::findings::{Verdict, line};

/// Print what there is. Nothing of it is needed: without a GPU all else works.
pub(crate) fn print_gpus(verdict: &mut Verdict) {
    println!("\nGPU (calls on memory of devices)");
    let version = match Cuda::load() {
        Ok(cuda) => {
            line("driver", format!("CUDA {} ({})", cuda.version(), cuda.file()));
            match print_devices(cuda) {
                Ok(0) => verdict.lacks("GPUs", "the driver has none"),
                Ok(devices) => verdict.works(format!("calls on memory of GPUs ({devices} here)")),
                Err(error) => {
                    verdict.lacks("GPUs", &error.to_string());
                    line("devices", format!("unknown: {error}"));
                }
            }
            Some(cuda.version())
        }
        Err(missing) => {
            verdict.lacks("GPUs", &missing.next_step);
            line("driver", format!("none: {}", missing.why));
            line("", format!("next: {}", missing.next_step));
            None
        }
    };
    print_compiler(version, verdict);
    print_blas(version);
    print_direct(version.is_some());
}

/// Each, and how many there are.
fn print_devices(cuda: Cuda) -> Result<usize> {
    let devices = cuda.devices()?;
    for device in &devices {
        line(&format!("device {}", device.ordinal), describe(device));
        line("", abilities(device));
        match Context::new(device).and_then(|context| context.memory()) {
            Ok((free, _)) => line("", format!("{:.1} GiB free", gib(free))),
            Err(error) => line("", format!("it cannot be opened: {error}")),
        }
    }
    if devices.len() == 1 {
        line("peers", String::from("one device: ranks that share it reach each other"));
    }
    for from in &devices {
        for to in devices.iter().filter(|to| to.ordinal > from.ordinal) {
            let words = match from.link_to(to) {
                Ok(link) => reach(link),
                Err(error) => format!("unknown: {error}"),
            };
            line(&format!("{} and {}", from.ordinal, to.ordinal), words);
        }
    }
    Ok(devices.len())
}

fn describe(device: &Device) -> String {
    let Device { name, pci, multiprocessors, .. } = device;
    let memory = gib(device.memory_bytes);
    format!("{name}, {}, {memory:.1} GiB, {multiprocessors} processors, at {pci}", device.arch())
}

fn abilities(device: &Device) -> String {
    let all = [
        ("pools", device.has_pools),
        ("cooperative launch", device.has_cooperative_launch),
        ("memory by descriptor", device.has_shareable),
        ("dmabuf for RDMA", device.has_dmabuf),
        ("pinning in place", device.has_host_register),
    ];
    let named = |wanted: bool| -> String {
        let names = all.iter().filter(|(_, has)| *has == wanted).map(|(name, _)| *name);
        names.collect::<Vec<_>>().join(", ")
    };
    match named(false) {
        lacks if lacks.is_empty() => named(true),
        lacks => format!("{}; lacks {lacks}", named(true)),
    }
}

fn reach(link: PeerLink) -> String {
    match link {
        PeerLink { reaches: false, .. } => {
            String::from("do not reach each other: bytes go through pinned memory of the host")
        }
        PeerLink { has_atomics: true, rank, .. } => {
            format!("reach each other, with atomics (NVLink), rank {rank}")
        }
        PeerLink { rank, .. } => format!("reach each other (PCIe), rank {rank}"),
    }
}

fn print_compiler(driver: Option<Version>, verdict: &mut Verdict) {
    match Compiler::find() {
        Ok(compiler) => {
            let version = compiler.version();
            line("compiler", format!("NVRTC {version} ({})", compiler.file()));
            if driver.is_some_and(|driver| driver.major < version.major) {
                let why = "it is of a later generation than the driver, which may refuse its code";
                line("", format!("{why}; {} names another", nvrtc::LIBRARY_VARIABLE));
            }
        }
        Err(missing) => {
            // Without a driver nobody needs it.
            if driver.is_some() {
                verdict.lacks("kernels for GPUs but those that are kept", &missing.next_step);
            }
            line("compiler", format!("none: {}", missing.why));
            line("", format!("next: {}", missing.next_step));
        }
    }
    match (nvrtc::folder(), nvrtc::doubt()) {
        (_, Some(doubt)) => line("kernels", doubt),
        (Some(folder), None) => line("kernels", format!("kept in {}", folder.display())),
        (None, None) => line("kernels", String::from("not kept: set BRIGADE_CACHE, or HOME")),
    }
}

/// What multiplies in the trainer; where there is no driver, that has been said.
fn print_blas(driver: Option<Version>) {
    match driver.map(find_blas) {
        None => (),
        Some(Ok(file)) => line("cuBLAS", file.display().to_string()),
        Some(Err(why)) => {
            line("cuBLAS", format!("none, the trainer multiplies by kernels of its own: {why}"));
            let next = "next: install a toolkit, or Python's nvidia-cublas";
            line("", format!("{next}; {BLAS_VARIABLE} names another place"));
        }
    }
}

/// Whether drives reach devices; where there is no driver, that has been said.
fn print_direct(has_driver: bool) {
    let found = if has_driver { GpuDirect::open() } else { return };
    match found {
        Ok(direct) => {
            line("GPUDirect", format!("Storage: {}", direct.describe()));
            line("", String::from("brigade offload bench direct --path DIR asks a drive"));
        }
        Err(missing) => {
            line("GPUDirect", format!("no Storage, files go through the host: {missing}"));
            line("", format!("next: {}", missing.next_step));
        }
    }
}

fn gib(bytes: usize) -> f64 {
    bytes as f64 / f64::from(1 << 30)
}
