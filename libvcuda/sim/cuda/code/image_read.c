/*
 * Reads code images: finds out whether an image is PTX, an ELF file or a fat binary, and collects its kernels and
 * variables. The formats are read in cuda/code/ptx.c and cuda/code/cubin.c; charging for a module is in
 * cuda/code/module.c.
 */
#include "cuda/code/image.h"

#include <elf.h>
#include <stdlib.h>
#include <string.h>

#define FATBIN_MAGIC 0xba55ed50u
#define FATBIN_WRAPPER_MAGIC 0x466243b1u
#define FATBIN_KIND_PTX 1
#define FATBIN_KIND_ELF 2
#define MAX_IMAGE ((uint64_t)1 << 30)

struct wrapper {
	uint32_t magic, version;
	const void *data;
};

struct fatbin {
	uint32_t magic;
	uint16_t version, header_size;
	uint64_t size; /* bytes of all entries */
};

struct entry {
	uint16_t kind, version;
	uint32_t header_size;
	uint64_t size; /* bytes after the header */
	uint32_t compressed_size;
	uint32_t reserved;
	uint32_t capability_minor, capability_major;
};

/* Where an ELF file ends according to its headers: after its last section or section header. */
static size_t elf_size(const char *data)
{
	Elf64_Ehdr header;
	uint64_t end;

	memcpy(&header, data, sizeof header);
	end = header.e_shoff + (uint64_t)header.e_shnum * sizeof(Elf64_Shdr);
	if (header.e_shentsize != sizeof(Elf64_Shdr) || header.e_shoff > MAX_IMAGE)
		return 0;
	for (unsigned i = 0; i < header.e_shnum; i++) {
		Elf64_Shdr section;
		memcpy(&section, data + header.e_shoff + i * sizeof section, sizeof section);
		if (section.sh_type == SHT_NOBITS)
			continue;
		if (section.sh_offset > MAX_IMAGE || section.sh_size > MAX_IMAGE)
			return 0;
		if (section.sh_offset + section.sh_size > end)
			end = section.sh_offset + section.sh_size;
	}
	return end;
}

static enum sim_image_status read_text(const char *data, size_t size, struct sim_image *image)
{
	char *text = strndup(data, size);
	enum sim_image_status status = text ? sim_ptx_read(text, image) : SIM_IMAGE_NO_MEMORY;

	free(text);
	return status;
}

/* Reads every entry: the names are the same whichever entry the card would run. */
static enum sim_image_status read_entries(const char *at, uint64_t left, struct sim_image *image)
{
	enum sim_image_status status = SIM_IMAGE_OK;
	struct entry entry;

	while (left >= sizeof entry && status != SIM_IMAGE_NO_MEMORY) {
		memcpy(&entry, at, sizeof entry);
		if (entry.header_size < sizeof entry || entry.header_size > left ||
		    entry.size > left - entry.header_size)
			return SIM_IMAGE_INVALID;
		const char *content = at + entry.header_size;
		if (entry.compressed_size || (entry.kind != FATBIN_KIND_PTX && entry.kind != FATBIN_KIND_ELF))
			image->is_opaque = true;
		else if (entry.kind == FATBIN_KIND_PTX)
			status = read_text(content, entry.size, image);
		else
			status = sim_cubin_read(content, entry.size, image);
		at = content + entry.size;
		left -= entry.header_size + entry.size;
	}
	return status;
}

static enum sim_image_status read_fatbin(const char *data, size_t size, struct sim_image *image)
{
	struct fatbin header;

	if (size && size < sizeof header)
		return SIM_IMAGE_INVALID;
	memcpy(&header, data, sizeof header);
	if (header.header_size < sizeof header || header.size > MAX_IMAGE ||
	    (size && header.size > size - header.header_size))
		return SIM_IMAGE_INVALID;
	image->size = header.header_size + header.size;
	return read_entries(data + header.header_size, header.size, image);
}

static enum sim_image_status read_cubin(const char *data, size_t size, struct sim_image *image)
{
	image->size = size ? size : elf_size(data);
	return image->size >= sizeof(Elf64_Ehdr) ? sim_cubin_read(data, image->size, image) : SIM_IMAGE_INVALID;
}

static uint32_t magic_of(const char *data, size_t size)
{
	uint32_t magic = 0;

	/* Byte by byte up to a NUL: an invalid image may be a short string. */
	for (size_t i = 0; i < sizeof magic; i++)
		if ((size && i >= size) || !data[i])
			return 0;
	memcpy(&magic, data, sizeof magic);
	return magic;
}

enum sim_image_status sim_image_read(const void *data, size_t size, struct sim_image *image)
{
	enum sim_image_status status;
	struct wrapper wrapper;

	*image = (struct sim_image){0};
	switch (magic_of(data, size)) {
	case 0x464c457fu: status = read_cubin(data, size, image); break;
	case FATBIN_MAGIC: status = read_fatbin(data, size, image); break;
	case FATBIN_WRAPPER_MAGIC:
		memcpy(&wrapper, data, sizeof wrapper);
		status = wrapper.data && magic_of(wrapper.data, 0) == FATBIN_MAGIC ? read_fatbin(wrapper.data, 0, image)
										   : SIM_IMAGE_INVALID;
		break;
	default: image->size = size ? size : strlen(data); status = read_text(data, image->size, image);
	}
	if (status != SIM_IMAGE_OK)
		sim_image_free(image);
	return status;
}
