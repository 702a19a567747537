// What it has for a kernel is there without it: shim.h.
#pragma once
