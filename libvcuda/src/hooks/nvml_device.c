/* See hooks/nvml_device.h. */
#include "hooks/nvml_device.h"

#include <string.h>

#include "driver/nvml_table.h"

static __thread int inside;

bool nvml_device_guard_enter(void)
{
	if (inside)
		return false;
	inside++;
	return true;
}

void nvml_device_guard_leave(void)
{
	inside--;
}

static int hex_digit(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* `GPU-8a56a4bc-...` or `MIG-...` as 16 bytes. */
static bool parse_uuid(const char *text, uint8_t uuid[16])
{
	int digits = 0;

	text = strchr(text, '-');
	if (!text)
		return false;
	for (; *text; text++) {
		int value = hex_digit(*text);
		if (*text == '-')
			continue;
		if (value < 0 || digits == 32)
			return false;
		uuid[digits / 2] = (uint8_t)(digits % 2 ? uuid[digits / 2] << 4 | value : value);
		digits++;
	}
	return digits == 32;
}

enum sight nvml_device_sight(nvmlDevice_t device, uint8_t uuid[16], struct card_limits *limits)
{
	char text[NVML_DEVICE_UUID_V2_BUFFER_SIZE];

	if (limits_state() == LIMITS_ABSENT)
		return WHOLE_CARD;
	if (limits_state() == LIMITS_BROKEN || REAL(nvmlDeviceGetUUID, device, text, sizeof(text)) != NVML_SUCCESS ||
	    !parse_uuid(text, uuid))
		return UNKNOWN;
	return limits_of(uuid, limits) ? SHARE : WHOLE_CARD;
}

nvmlReturn_t nvml_device_error(nvmlDevice_t device)
{
	char text[NVML_DEVICE_UUID_V2_BUFFER_SIZE];
	nvmlReturn_t result = REAL(nvmlDeviceGetUUID, device, text, sizeof(text));

	return limits_state() == LIMITS_BROKEN || result == NVML_SUCCESS ? NVML_ERROR_UNKNOWN : result;
}
