#ifndef GLOO_TRANSPORT_DEVICE_H_
#define GLOO_TRANSPORT_DEVICE_H_

namespace gloo::transport {

class Device;
class UnboundBuffer;

}  // namespace gloo::transport

#endif  // GLOO_TRANSPORT_DEVICE_H_
