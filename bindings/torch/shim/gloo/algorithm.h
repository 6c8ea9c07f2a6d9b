// See gloo/context.h of this folder: included by ProcessGroupGloo.hpp, which uses nothing of it.
#pragma once
