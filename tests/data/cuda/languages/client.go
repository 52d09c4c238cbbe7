// The program of client.c in Go: what it sees of each card, through dlopen.
package main

/*
#cgo LDFLAGS: -ldl
#include <dlfcn.h>
#include <stdlib.h>

static int call(void *function, unsigned long long a, unsigned long long b)
{
	return function ? ((int (*)(unsigned long long, unsigned long long))function)(a, b) : -1;
}
*/
import "C"

import (
	"fmt"
	"os"
	"runtime"
	"unsafe"
)

var library unsafe.Pointer

func call(name string, a uint64, b uint64) int {
	symbol := C.CString(name)
	defer C.free(unsafe.Pointer(symbol))
	return int(C.call(C.dlsym(library, symbol), C.ulonglong(a), C.ulonglong(b)))
}

func main() {
	runtime.LockOSThread() // a context is current to a thread
	library = C.dlopen(C.CString(os.Args[1]), C.RTLD_NOW)
	if library == nil {
		fmt.Fprintln(os.Stderr, C.GoString(C.dlerror()))
		os.Exit(1)
	}
	words := (*[4]uint64)(C.calloc(4, 8)) // of C's heap, whose addresses are numbers that stay
	address := func(index int) uint64 { return uint64(uintptr(unsafe.Pointer(&words[index]))) }
	call("cuInit", 0, 0)
	call("cuDeviceGetCount", address(0), 0)
	cards := int(words[0])
	for card := 0; card < cards; card++ {
		call("cuDevicePrimaryCtxRetain", address(1), uint64(card))
		call("cuCtxSetCurrent", words[1], 0)
		call("cuMemGetInfo_v2", address(2), address(3))
		total := words[3]
		half := call("cuMemAlloc_v2", address(2), total/2)
		all := call("cuMemAlloc_v2", address(2), total)
		fmt.Println(card, total, half, all)
	}
}
