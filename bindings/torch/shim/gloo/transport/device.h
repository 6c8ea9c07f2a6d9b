// See gloo/context.h of this folder.
#pragma once
namespace gloo::transport {
class Device;
}
