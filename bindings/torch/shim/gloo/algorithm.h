// See gloo/context.h of this folder: ProcessGroupGloo.hpp includes it and uses none of its names.
#pragma once
