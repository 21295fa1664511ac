#ifndef SHERD_TESTING_KITS_FAKE_DEVICE_BACKEND_H_
#define SHERD_TESTING_KITS_FAKE_DEVICE_BACKEND_H_

namespace sherd::testing {

// Registers the backend "fake_device", once: all_to_all_v between ranks that
// are threads, on the memory of a FakeDevice. An operation runs when it is
// posted, after all work queued on its stream, and waits for the other ranks.
// Use it as "cpu:local,cuda:fake_device".
void RegisterFakeDeviceBackend();

}  // namespace sherd::testing

#endif  // SHERD_TESTING_KITS_FAKE_DEVICE_BACKEND_H_
