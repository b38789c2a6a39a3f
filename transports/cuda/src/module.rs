//! Kernels: loaded, looked up and launched.

use std::ffi::{CString, c_int, c_void};
use std::fmt;
use std::marker::PhantomData;
use std::ptr;
use std::sync::Arc;

use crate::aloof::Aloof;
use crate::pace::COMMAND;
use crate::sys::{CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK, CU_FUNC_ATTRIBUTE_NUM_REGS, Handle};
use crate::{Code, Context, CudaError, Result, Stream};

/// Code for a device, loaded. Cloning it is cheap.
#[derive(Clone)]
pub struct Module {
    inner: Arc<Inner>,
}

struct Inner {
    context: Context,
    raw: Handle,
}

// SAFETY: modules belong to no thread; the driver locks what its calls share.
unsafe impl Send for Inner {}
// SAFETY: as above.
unsafe impl Sync for Inner {}

impl fmt::Debug for Module {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "Module of {:?}", self.inner.context)
    }
}

impl Module {
    /// Load an image: a cubin or PTX, as [`nvrtc`](crate::nvrtc) makes it.
    ///
    /// # Safety
    ///
    /// The image is code that the caller trusts: kernels can do anything to the device's memory.
    ///
    /// # Errors
    ///
    /// What the driver says of images that are broken or for another device.
    pub unsafe fn load(context: &Context, image: &[u8]) -> Result<Self> {
        let _here = context.enter()?;
        let _aloof = Aloof::new(context.driver());
        // PTX is text that ends with a zero; cubins do not mind one.
        let mut ended = Vec::with_capacity(image.len() + 1);
        ended.extend_from_slice(image);
        ended.push(0);
        let mut raw = ptr::null_mut();
        // SAFETY: the pointer is to a handle that outlives the call; the image ends with a zero.
        unsafe { context.driver().module_load_data(&mut raw, ended.as_ptr().cast()) }
            .ok(format_args!("loading kernels of {} bytes", image.len()))?;
        Ok(Self { inner: Arc::new(Inner { context: context.clone(), raw }) })
    }

    /// The kernel with this name (`extern "C"`, so the name is what the source says), loaded as a
    /// whole: what is left to its first launch might wait for the device then.
    ///
    /// # Errors
    ///
    /// What the driver says where there is none.
    pub fn function(&self, name: &str) -> Result<Function> {
        let c_name = CString::new(name).map_err(|_| CudaError::refused("a name with a zero"))?;
        let context = &self.inner.context;
        let _here = context.enter()?;
        let _aloof = Aloof::new(context.driver());
        let mut raw = ptr::null_mut();
        // SAFETY: the pointers are to a handle and a C string that outlive the call.
        unsafe { context.driver().module_get_function(&mut raw, self.inner.raw, c_name.as_ptr()) }
            .ok(format_args!("looking up kernel {name}"))?;
        // SAFETY: the function is its module's, which is alive.
        match unsafe { context.driver().func_load(raw) }.ok(format_args!("loading kernel {name}")) {
            // Before CUDA 12.4 there is no such call, and looking it up has loaded it.
            Ok(()) | Err(CudaError::Call { code: Code::NOT_SUPPORTED, .. }) => {}
            Err(error) => return Err(error),
        }
        Ok(Function { module: self.clone(), raw })
    }

    /// Its context.
    pub fn context(&self) -> &Context {
        &self.inner.context
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        if let Ok(_here) = self.context.enter() {
            let _aloof = Aloof::new(self.context.driver());
            // SAFETY: loaded once and unloaded once; functions keep the module alive.
            unsafe { self.context.driver().module_unload(self.raw) }.sunk();
        }
    }
}

/// A kernel. Cloning it is cheap.
#[derive(Clone)]
pub struct Function {
    module: Module,
    raw: Handle,
}

// SAFETY: functions belong to no thread, and live as long as their module.
unsafe impl Send for Function {}
// SAFETY: as above.
unsafe impl Sync for Function {}

/// How many blocks of how many threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Blocks in each direction.
    pub grid: [u32; 3],
    /// Threads of each block in each direction.
    pub block: [u32; 3],
    /// Shared memory of each block beyond what the source declares, in bytes.
    pub shared_bytes: u32,
    /// All blocks run at the same time or the launch is refused, so they may wait for each other.
    pub is_cooperative: bool,
}

impl Launch {
    /// `blocks` of `threads`, in a line.
    pub fn linear(blocks: u32, threads: u32) -> Self {
        let (grid, block) = ([blocks, 1, 1], [threads, 1, 1]);
        Self { grid, block, shared_bytes: 0, is_cooperative: false }
    }

    /// The same with this much shared memory.
    pub fn shared(self, shared_bytes: u32) -> Self {
        Self { shared_bytes, ..self }
    }

    /// The same, with blocks that may wait for each other.
    pub fn cooperative(self) -> Self {
        Self { is_cooperative: true, ..self }
    }
}

/// An argument of a kernel: a place that is read when it is launched.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Arg<'a> {
    pointer: *mut c_void,
    borrowed: PhantomData<&'a ()>,
}

impl<'a> Arg<'a> {
    /// The argument with this value. Its type is the kernel's parameter in C: numbers, addresses
    /// as `u64`, or a `repr(C)` structure that is passed by value.
    pub fn of<T: Copy>(value: &'a T) -> Self {
        Self { pointer: ptr::from_ref(value).cast_mut().cast(), borrowed: PhantomData }
    }
}

impl Function {
    /// Launch it: it begins when the stream gets here. Allocates nothing; costs some 2 us.
    ///
    /// # Safety
    ///
    /// The arguments are the kernel's parameters, in number, order and type; all memory that it
    /// uses exists until it is done, and nobody else uses what it writes, except as the kernel
    /// itself arranges.
    ///
    /// # Errors
    ///
    /// What the driver says of shapes that the device cannot run. What goes wrong in the kernel is
    /// told by a later call.
    pub unsafe fn launch(&self, stream: &Stream, shape: &Launch, args: &[Arg<'_>]) -> Result<()> {
        let context = &self.module.inner.context;
        stream.keep_pace(COMMAND)?;
        let _here = context.enter()?;
        let [grid_x, grid_y, grid_z] = shape.grid;
        let [block_x, block_y, block_z] = shape.block;
        let (driver, shared, stream) = (context.driver(), shape.shared_bytes, stream.raw());
        // `Arg` is a pointer, and the driver only reads the array.
        let args = args.as_ptr().cast_mut().cast::<*mut c_void>();
        let called = if shape.is_cooperative {
            // SAFETY: handed on to our caller.
            unsafe {
                driver.launch_cooperative_kernel(
                    self.raw, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared, stream,
                    args,
                )
            }
        } else {
            // SAFETY: handed on to our caller.
            unsafe {
                driver.launch_kernel(
                    self.raw,
                    grid_x,
                    grid_y,
                    grid_z,
                    block_x,
                    block_y,
                    block_z,
                    shared,
                    stream,
                    args,
                    ptr::null_mut(),
                )
            }
        };
        called.ok(format_args!("launching a kernel as {shape:?}"))
    }

    /// The most threads a block of it can have.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn threads_max(&self) -> Result<u32> {
        self.attribute(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK)
    }

    /// Registers that each thread uses.
    ///
    /// # Errors
    ///
    /// What the driver says.
    pub fn registers(&self) -> Result<u32> {
        self.attribute(CU_FUNC_ATTRIBUTE_NUM_REGS)
    }

    fn attribute(&self, which: c_int) -> Result<u32> {
        let context = &self.module.inner.context;
        let _here = context.enter()?;
        let mut value = 0;
        // SAFETY: the pointer is to a number that outlives the call; the function is alive.
        unsafe { context.driver().func_get_attribute(&mut value, which, self.raw) }
            .ok("asking about a kernel")?;
        Ok(value.max(0) as u32)
    }
}
